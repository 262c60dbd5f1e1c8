// A learner and actors: the learner's weights are broadcast, actors play by them, and return what happened.
//
//     ferry-run -n 4 ./23_actors
//
// The game: a pole stands on a cart, and a push to the left or to the right each moment is all that keeps it upright. A moment is
// worth 1, and after 200 the episode is over.

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/generator.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

using ferry::tensor;

constexpr int longest = 200, episodes = 4, most_rounds = 80;
constexpr double wanted = 150;  // moments, the mean of a round
constexpr double discount = 0.98;

struct policy {
  ferry::nn::linear hidden{4, 32};
  ferry::nn::linear out{32, 2};

  tensor operator()(const tensor& state) const { return out(ferry::tanh(hidden(state))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
    visit("out", out);
  }
};

// The learner's weights go to all others. Every worker calls it.
void broadcast(policy& of, const ferry::process_group& group) {
  std::vector<ferry::future<void>> under_way;
  for (const tensor& each : ferry::nn::parameters(of)) under_way.push_back(group.broadcast(ferry::detach(each), 0));
  for (const auto& each : under_way) each.get();
}

// The cart's place and speed, the pole's angle and how fast it turns (A. Barto, R. Sutton, C. Anderson, "Neuronlike Adaptive Elements
// That Can Solve Difficult Learning Control Problems", 1983).
struct cart_pole {
  std::vector<float> state;

  explicit cart_pole(ferry::generator& random) : state(4) {
    for (float& each : state) each = static_cast<float>(random.uniform() * 0.1 - 0.05);
  }
  // Returns whether the pole still stands.
  bool push(bool right) {
    constexpr float moment = 0.02F, half_length = 0.5F, mass = 0.1F, whole_mass = 1.1F;
    const float force = right ? 10.0F : -10.0F;
    const float sine = std::sin(state[2]), cosine = std::cos(state[2]);
    const float common = (force + mass * half_length * state[3] * state[3] * sine) / whole_mass;
    const float turn =
        (9.8F * sine - cosine * common) / (half_length * (4.0F / 3 - mass * cosine * cosine / whole_mass));
    const float speed_up = common - mass * half_length * turn * cosine / whole_mass;
    state = {state[0] + moment * state[1], state[1] + moment * speed_up, state[2] + moment * state[3],
             state[3] + moment * turn};
    return std::abs(state[0]) < 2.4F && std::abs(state[2]) < 0.209F;
  }
};

// What happened at an actor, moment by moment, episode after episode.
struct experience {
  std::vector<float> states;  // four a moment
  std::vector<std::int64_t> pushes;
  std::vector<float> returns;  // what the rest of the episode was worth

  template <class Archive>
  void serialize(Archive& archive) {
    archive(states, pushes, returns);
  }
};

// An actor's side --------------------------------------------------------------------------------------------------

class actor {
 public:
  explicit actor(std::uint64_t seed) : learner_and_actors_(ferry::all_workers), random_(seed) {}

  experience play() {
    broadcast(policy_, learner_and_actors_);
    const ferry::no_grad outside;
    experience seen;
    for (int episode = 0; episode != episodes; ++episode) {
      cart_pole game(random_);
      const std::size_t begin = seen.pushes.size();
      for (bool standing = true; standing && seen.pushes.size() - begin != longest;) {
        const tensor odds = ferry::softmax(policy_(ferry::from_vector(game.state)), 0);
        const bool right = random_.uniform() < odds.at<float>(1);
        seen.states.insert(seen.states.end(), game.state.begin(), game.state.end());
        seen.pushes.push_back(right ? 1 : 0);
        standing = game.push(right);
      }
      seen.returns.resize(seen.pushes.size());
      double rest = 0;
      for (std::size_t i = seen.returns.size(); i-- != begin;) {
        seen.returns[i] = static_cast<float>(rest = 1 + discount * rest);
      }
    }
    return seen;
  }

 private:
  ferry::process_group learner_and_actors_;
  policy policy_;
  ferry::generator random_;
};

template <>
struct ferry::object_traits<actor> {
  static constexpr auto execution = ferry::execution::exclusive;  // one round at a time
};

// The learner ------------------------------------------------------------------------------------------------------

// One step of policy gradients (R. Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
// Learning", 1992): pushes that went better than the mean become more probable.
void learn(policy& learned, ferry::optimizer<ferry::adam>& optimizer, const experience& seen) {
  const auto moments = static_cast<std::int64_t>(seen.pushes.size());
  const tensor returns = ferry::from_vector(seen.returns);
  const tensor better = returns - ferry::mean(returns);
  const double spread = std::sqrt(ferry::mean(better * better).item<float>()) + 1e-6;
  optimizer.zero_grad();
  const tensor logits = learned(ferry::from_vector(seen.states, {moments, 4}));
  const tensor improbability = ferry::cross_entropy(logits, ferry::from_vector(seen.pushes), ferry::reduction::none);
  ferry::backward(ferry::mean(improbability * better) / spread);
  optimizer.step();
}

bool lead(const std::vector<ferry::worker_info>& workers) {
  std::vector<ferry::rref<actor>> actors;
  for (std::size_t i = 1; i != workers.size(); ++i) {
    actors.push_back(ferry::remote<ferry::make<actor>>(workers[i], std::uint64_t(i)));
  }
  const ferry::process_group group(ferry::all_workers);  // forms while the actors are made
  ferry::manual_seed(1);
  policy learned;
  ferry::optimizer<ferry::adam> optimizer(ferry::nn::parameters(learned), {.lr = 0.02});

  for (int round = 1; round <= most_rounds; ++round) {
    std::vector<ferry::future<experience>> playing;
    for (const auto& each : actors) playing.push_back(each.rpc_async<&actor::play>());
    broadcast(learned, group);
    experience all;
    for (const auto& each : playing) {
      const experience seen = each.get();
      all.states.insert(all.states.end(), seen.states.begin(), seen.states.end());
      all.pushes.insert(all.pushes.end(), seen.pushes.begin(), seen.pushes.end());
      all.returns.insert(all.returns.end(), seen.returns.begin(), seen.returns.end());
    }
    const double mean = static_cast<double>(all.pushes.size()) / static_cast<double>(episodes * actors.size());
    if (round % 5 == 0 || mean >= wanted) {
      std::printf("round %2d  the pole stands for %5.1f moments\n", round, mean);
      std::fflush(stdout);
    }
    if (mean >= wanted) return true;
    learn(learned, optimizer, all);
  }
  std::fprintf(stderr, "after %d rounds the pole still falls before %.0f moments\n", most_rounds, wanted);
  return false;
}

int main() {
  try {
    ferry::worker self = ferry::init_rpc();
    const bool right = self.id() != 0 || lead(self.workers());
    self.shutdown();
    return right ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "23_actors: %s\n", problem.what());
    return 1;
  }
}

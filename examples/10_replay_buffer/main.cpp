// A learner, and actors that fill its replay buffer.   ferry-run -n 4 ./10_replay_buffer
//
// The world is a corridor of cells; its last one has the reward. Actors walk it by the learner's policy, now and then at random;
// the learner draws old steps from the buffer and learns from them what each step is worth (Q-learning).

#include <ferry/ferry.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

constexpr int cells = 12, episodes = 40, most_steps = 200, batches = 1000;
constexpr std::size_t in_batch = 32;
constexpr double discount = 0.9, rate = 0.3;

struct step {
  std::int32_t from = 0, to = 0;
  bool forward = false;
  double reward = 0;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(from, to, forward, reward);
  }
};
using table = std::array<std::array<double, 2>, cells>;  // what going back, or forward, is worth in each cell

// The learner's objects -------------------------------------------------------------------------------------------

class replay_buffer {
 public:
  void add(const std::vector<step>& episode) {
    for (const step& each : episode) steps_[added_++ % steps_.size()] = each;
  }
  std::vector<step> sample() {
    std::vector<step> drawn;
    if (added_ == 0) return drawn;
    std::uniform_int_distribution<std::size_t> any(0, std::min(added_, steps_.size()) - 1);
    while (drawn.size() != in_batch) drawn.push_back(steps_[any(random_)]);
    return drawn;
  }
  std::size_t added() const { return added_; }

 private:
  std::vector<step> steps_ = std::vector<step>(2000);
  std::size_t added_ = 0;
  std::mt19937 random_{1};
};

class policy {
 public:
  table worth() const { return worth_; }
  void learn(const std::vector<step>& steps) {
    for (const step& s : steps) {
      const auto& after = worth_[static_cast<std::size_t>(s.to)];
      const double target = s.reward + (s.reward > 0 ? 0 : discount * std::max(after[0], after[1]));
      double& now = worth_[static_cast<std::size_t>(s.from)][s.forward ? 1 : 0];
      now += rate * (target - now);
    }
  }

 private:
  table worth_{};
};

// Actors and learner use both at any time. Their calls take turns, one at a time, in the order in which they come.
template <>
struct ferry::object_traits<replay_buffer> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<policy> {
  static constexpr auto execution = ferry::execution::exclusive;
};

// The actors' side --------------------------------------------------------------------------------------------------

// One walk from the first cell to the last: forward or back as the table says, or at random as often as `curious`.
std::vector<step> walk(const table& worth, double curious, std::mt19937& random) {
  std::uniform_real_distribution<double> chance;
  std::vector<step> steps;
  for (int at = 0; at != cells - 1 && steps.size() != most_steps;) {
    const auto& [back, ahead] = worth[static_cast<std::size_t>(at)];
    const bool forward = back == ahead || chance(random) < curious ? chance(random) < 0.5 : ahead > back;
    const int to = std::max(0, at + (forward ? 1 : -1));
    steps.push_back({at, to, forward, to == cells - 1 ? 1.0 : 0.0});
    at = to;
  }
  return steps;
}

// Walks by what is known at the moment, and says what happened.
void act(const ferry::rref<policy>& learned, const ferry::rref<replay_buffer>& buffer, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  for (int episode = 0; episode != episodes; ++episode) {
    const table worth = learned.rpc_sync<&policy::worth>();
    buffer.rpc_sync<&replay_buffer::add>(walk(worth, 0.2, random));
  }
}
int steps_needed(const ferry::rref<policy>& learned) {
  std::mt19937 random(0);
  return static_cast<int>(walk(learned.rpc_sync<&policy::worth>(), 0, random).size());
}

// The learner ------------------------------------------------------------------------------------------------------

bool learn(const std::vector<ferry::worker_info>& group) {
  const ferry::rref<policy> learned(std::in_place);  // objects of this worker: no message is sent
  const ferry::rref<replay_buffer> buffer(std::in_place);
  const std::vector<ferry::worker_info> actors(group.begin() + 1, group.end());

  std::vector<ferry::future<void>> acting;
  for (const auto& who : actors) acting.push_back(ferry::rpc_async<act>(who, learned, buffer, who.id().value));
  auto all = ferry::when_all(std::move(acting));
  int done = 0;
  for (; !all.ready() || done < batches; ++done) {
    // Here these calls do not leave the process, but take their turns as those of the actors do.
    learned.rpc_sync<&policy::learn>(buffer.rpc_sync<&replay_buffer::sample>());
  }
  all.get();

  std::printf("learned from %d batches of %zu of %zu steps\n", done, in_batch, buffer.local_value().added());
  bool right = true;
  for (const auto& who : actors) {
    const int steps = ferry::rpc_sync<steps_needed>(who, learned);
    std::printf("%s needs %d steps\n", who.name().c_str(), steps);
    right = right && steps == cells - 1;
  }
  return right;
}

int main() {
  ferry::worker self = ferry::init_rpc();
  const bool right = self.id().value != 0 || learn(ferry::get_worker_infos());
  self.shutdown();
  return right ? 0 : 1;
}

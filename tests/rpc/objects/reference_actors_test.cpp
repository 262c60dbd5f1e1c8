// Reinforcement learning with references both ways: an agent makes observers on other workers, and they call it back.

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/ferry.hpp>

#include "cluster.hpp"
#include "tests/rpc/references/table/references.hpp"

namespace reference_actors_test {

using ferry::rref;

constexpr int observers = 3;
constexpr int states = 4;
constexpr int episode_steps = 12;
constexpr int most_episodes = 50;
constexpr double threshold = 0.95;  // fraction of the maximum reward

class agent;

// Has an environment: in each state one of three actions is right.
class observer {
 public:
  explicit observer(int number) : number_(number) {}
  int run_episode(const rref<agent>& policy);

 private:
  int number_;
};

// Has the policy. Its tables need no lock: its calls take turns.
class agent {
 public:
  int choose(int /*observer*/, int state) {
    const auto& known = worth_.at(static_cast<std::size_t>(state));
    for (std::size_t action = 0; action != known.size(); ++action) {
      if (known[action] != 0) continue;  // never tried
      return static_cast<int>(action);
    }
    std::size_t best = 0;
    for (std::size_t action = 0; action != known.size(); ++action) {
      if (known[action] > known[best]) best = action;
    }
    return static_cast<int>(best);
  }
  void reward(int observer, int state, int action, double value) {
    worth_.at(static_cast<std::size_t>(state)).at(static_cast<std::size_t>(action)) = value;
    rewards_.at(static_cast<std::size_t>(observer)) += value > 0 ? value : 0;
    ++rewarded_;
  }
  // All observers at once; they call this agent while it waits for them.
  ferry::task<double> run_episode(const rref<agent>& self, const std::vector<rref<observer>>& of) {
    rewards_.fill(0);
    std::vector<ferry::future<int>> running;
    for (const auto& each : of) running.push_back(each.rpc_async<&observer::run_episode>(self));
    int steps = 0;
    for (const int one : co_await ferry::when_all(std::move(running))) steps += one;
    double sum = 0;
    for (const double one : rewards_) sum += one;
    co_return sum / steps;
  }
  int rewarded() const { return rewarded_; }

 private:
  std::array<std::array<double, 3>, states> worth_{};
  std::array<double, observers> rewards_{};
  int rewarded_ = 0;
};

int observer::run_episode(const rref<agent>& policy) {
  if (!policy.confirmed_by_owner())
    throw std::logic_error("the agent's worker has not confirmed this observer's reference");
  for (int step = 0; step != episode_steps; ++step) {
    const int state = (step + number_) % states;
    const int action = policy.rpc_sync<&agent::choose>(number_, state);
    policy.rpc_sync<&agent::reward>(number_, state, action, action == (state * state) % 3 ? 1.0 : -1.0);
  }
  return episode_steps;
}

}  // namespace reference_actors_test

template <>
struct ferry::object_traits<reference_actors_test::agent> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace reference_actors_test {

TEST_CASE("[row 46] an agent and three observers call each other through references until the reward is high enough") {
  ferry_test::cluster group(observers + 1);
  {
    // Episodes are requested by the owner of the agent first, then by another worker.
    const rref<agent> here = group[0].remote<ferry::make<agent>>("worker0");
    const rref<agent> elsewhere = group[0].remote<ferry::make<agent>>("worker1");
    for (const rref<agent>& policy : {here, elsewhere}) {
      std::vector<rref<observer>> watching;
      for (int i = 0; i != observers; ++i) {
        watching.push_back(group[0].remote<ferry::make<observer>>("worker" + std::to_string(i + 1), i));
      }
      int episodes = 0;
      double reached = 0;
      while (reached < threshold && episodes != most_episodes) {
        reached = policy.rpc_sync<&agent::run_episode>(policy, watching);
        ++episodes;
      }
      CHECK(reached >= threshold);
      CHECK(episodes > 1);
      CHECK(policy.rpc_sync<&agent::rewarded>() == episodes * observers * episode_steps);
    }
  }
  for (int rank = 0; rank != group.size(); ++rank) {
    for (const char* figure :
         {"num_owner_rrefs", "num_forks", "num_users", "num_pending_users", "num_pending_children"}) {
      references_test::await_figure(group[rank], figure, "0");
    }
  }
}

}  // namespace reference_actors_test

// The ends of contexts: every worker that took part forgets them, and nothing brings them back.

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ferry/test_kit/faulty.hpp>

#include "dist_test.hpp"
#include "faulty_group.hpp"
#include "gate.hpp"
#include "temporary_directory.hpp"

namespace cleanup_test {

using namespace dist_test;
using namespace std::chrono_literals;

tensor chain(const tensor& a, const std::vector<std::string>& next) {
  if (next.empty()) return a * 2.0;
  return ferry::rpc_sync<chain>(next.front(), a, std::vector<std::string>(next.begin() + 1, next.end()));
}

ferry_test::gate entered;
// Holds a pass that has reached it.
struct holds : ferry::function<holds> {
  static constexpr std::string_view name = "holds";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    entered.pass();
    return gradient;
  }
};
tensor held(const tensor& a) { return holds::apply(a); }
tensor held_chain(const tensor& a, const std::vector<std::string>& next) {
  if (next.empty()) return holds::apply(a);
  return ferry::rpc_sync<held_chain>(next.front(), a, std::vector<std::string>(next.begin() + 1, next.end())) * 2.0;
}
tensor held_at(const tensor& a, const std::string& next) { return ferry::rpc_sync<held>(next, a) * 3.0; }

// A pass in a handler.
void train_and_hold(const std::vector<std::string>& next) {
  const dist::context context;
  const tensor a = leaf({1, 2});
  context.backward(ferry::sum(held_chain(a, next)));
}

ferry_test::gate late;
tensor late_handler(const tensor& a, const std::string& next) {
  late.pass();
  return ferry::rpc_sync<twice>(next, a);
}

TEST_CASE("[row 242] contexts on all workers are released after the scope, with gradients and without") {
  cluster group(4);
  for (const tensor& t : {leaf({1, 2}), ferry::tensor_of({1., 2.})}) {
    dist::context_id id;
    {
      const dist::context context(group[0]);
      id = context.id();
      for (const char* each : {"worker1", "worker2", "worker3"}) (void)group[0].rpc_sync<twice>(each, t);
      for (int rank = 0; rank != 4; ++rank) CHECK(dist::exists(id, group[rank]));
    }
    CHECK_FALSE(dist::exists(id, group[0]));
    await_no_contexts(group);
  }
}

TEST_CASE("[row 244] the release reaches workers that only took part through nested calls") {
  cluster group(4);
  for (const tensor& t : {leaf({1, 2}), ferry::tensor_of({1., 2.})}) {
    {
      const dist::context context(group[0]);
      (void)group[0].rpc_sync<chain>("worker1", t,
                                     std::vector<std::string>{"worker2", "worker3", "worker1", "worker3"});
      const auto known = dist::inspect(context, group[0]).known_workers;
      CHECK(known == std::vector<ferry::worker_id>{{1}});
      for (int rank = 0; rank != 4; ++rank) CHECK(contexts(group[rank]) == 1);
    }
    await_no_contexts(group);
  }
}

TEST_CASE("[row 165] the release arrives although it fails three times at each worker") {
  for (const auto action : {ferry::fault_action::fail, ferry::fault_action::drop}) {
    faulty_group group(4, 300ms);
    group.faults.add(
        {.action = action, .kinds = ferry::message_kinds::request, .method = "ferry/autograd/release", .of_each = 3});
    {
      const dist::context context(group[0]);
      (void)group[0].rpc_sync<chain>({"worker1", {.timeout = ferry::no_timeout}}, leaf({1, 2}),
                                     std::vector<std::string>{"worker2", "worker3"});
    }
    await_no_contexts(group, 4);
    const auto counters = group.faults.counters();
    CHECK(counters.failed + counters.dropped >= 3);
  }
}

TEST_CASE("a release that never arrives is made up for by that of a later context") {
  faulty_group group(2, 100ms);
  const auto lost = group.faults.add({.action = ferry::fault_action::fail,
                                      .kinds = ferry::message_kinds::request,
                                      .method = "ferry/autograd/release"});
  {
    const dist::context context(group[0]);
    (void)group[0].rpc_sync<twice>({"worker1", {.timeout = ferry::no_timeout}}, leaf({1, 2}));
  }
  await([&] { return group.faults.counters().failed >= 20; });
  CHECK(contexts(group[1]) == 1);
  group.faults.remove(lost);
  {
    const dist::context context(group[0]);
    (void)group[0].rpc_sync<twice>({"worker1", {.timeout = ferry::no_timeout}}, leaf({1, 2}));
  }
  await_no_contexts(group, 2);
}

TEST_CASE("contexts that follow one another end with the calls of the next ones, also behind another worker") {
  faulty_group group(3, 20s);
  // No release arrives.
  const auto lost = group.faults.add({.action = ferry::fault_action::fail,
                                      .kinds = ferry::message_kinds::request,
                                      .method = "ferry/autograd/release"});
  const auto round = [&] {
    const dist::context context(group[0]);
    const tensor a = leaf({1, 2});
    const tensor b = group[0].rpc_sync<chain>("worker1", a, std::vector<std::string>{"worker2"});
    context.backward(ferry::sum(b));
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  };
  for (int i = 0; i != 40; ++i) round();
  // The last one, and the one before that worker1 knew to be over when it called worker2.
  await([&] { return contexts(group[1]) == 1 && contexts(group[2]) <= 2; });
  // They are told when no call follows.
  group.faults.remove(lost);
  round();
  await_no_contexts(group, 3);
}

TEST_CASE("contexts end while an older one of their maker goes on") {
  cluster group(2);
  ferry_test::gate held_open;
  std::jthread older([&] {
    const dist::context context(group[0]);
    (void)group[0].rpc_sync<twice>("worker1", leaf({1, 2}));
    held_open.pass();
  });
  held_open.await_arrivals(1);
  for (int i = 0; i != 10; ++i) {
    const dist::context context(group[0]);
    (void)group[0].rpc_sync<twice>("worker1", leaf({1, 2}));
  }
  await([&] { return contexts(group[1]) == 1; });
  held_open.open();
  older.join();
  await_no_contexts(group);
}

TEST_CASE("a message that comes late does not bring a context back") {
  cluster group(3);
  const tensor a = leaf({1, 2});
  ferry::future<tensor> call;
  {
    const dist::context context(group[0]);
    call = group[0].rpc_async<late_handler>("worker1", a, "worker2");
    late.await_arrivals(1);
  }
  // The handler still runs, and calls worker2 only now.
  await([&] { return contexts(group[1]) == 0; });
  late.open();
  CHECK(numbers(call.get()) == vec{2, 4});
  CHECK_FALSE(call.get().requires_grad());
  for (int rank = 0; rank != 3; ++rank) CHECK(contexts(group[rank]) == 0);
  late.reset();
}

TEST_CASE("[row 268] a context that ends during a pass: the pass fails everywhere, and nothing is left") {
  cluster group(3);
  const tensor a = leaf({1, 2});
  ferry::future<void> pass;
  {
    const dist::context context(group[0]);
    const tensor b = group[0].rpc_sync<held_at>("worker1", a, "worker2");
    pass = dist::backward_async(context, ferry::sum(b));
    entered.await_arrivals(1);
    for (int rank = 0; rank != 3; ++rank) CHECK(passes(group[rank]) == 1);
    CHECK(dist::inspect(context, group[0]).pass_runs);
  }
  expect_error(errc::invalid_argument, "ended during the pass", [&] { pass.get(); });
  await_no_contexts(group);
  entered.open();
  entered.reset();
  // Again, with a release that comes while the held node is on another worker than the first.
  {
    const dist::context context(group[0]);
    const tensor b = group[0].rpc_sync<held>("worker0", a);
    pass = dist::backward_async(context, ferry::sum(group[0].rpc_sync<twice>("worker1", b)));
    entered.await_arrivals(1);
  }
  expect_error(errc::invalid_argument, "ended during the pass", [&] { pass.get(); });
  entered.open();
  await_no_contexts(group);
  entered.reset();
}

TEST_CASE("a handler whose deadline is over ends its pass and its context at all workers") {
  cluster group(3);
  expect_timeout("", [&] {
    group[0].rpc_sync<train_and_hold>({"worker1", {.timeout = 200ms}}, std::vector<std::string>{"worker2", "worker0"});
  });
  entered.open();
  await_no_contexts(group);
  entered.reset();
}

TEST_CASE("the graph of a context is freed with it") {
  cluster group(2);
  tensor a = leaf({1, 2});
  ferry::weak_tensor watched(a);
  {
    const dist::context context(group[0]);
    const tensor b = group[0].rpc_sync<twice>("worker1", a);
    context.backward(ferry::sum(b));
    a = tensor();
    CHECK_FALSE(watched.expired());
  }
  await_no_contexts(group);
  await([&] { return watched.expired(); });
}

TEST_CASE(
    "[row 80] [row 270] debug information: passes that run, and contexts, beside the keys of references and agent") {
  cluster group(4);
  std::vector<std::string> keys;
  for (const auto& [key, value] : group[0].debug_info()) keys.push_back(key);
  const auto of = [&](std::string_view part) {
    return std::count_if(keys.begin(), keys.end(),
                         [&](const std::string& key) { return key.find(part) != std::string::npos; });
  };
  CHECK(of("autograd.") == 2);
  CHECK(of("agent.") != 0);
  CHECK(of("num_owner_rrefs") == 1);
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());  // sorted: none comes twice
  const tensor a = leaf({1, 2});
  {
    // Passes in four contexts at once, each from a worker through the next one.
    const auto one = [&](int number) {
      const dist::context context(group[number]);
      const tensor b = group[number].rpc_sync<held>(ferry_test::worker_name((number + 1) % 4), a);
      dist::backward(context, ferry::sum(b));
    };
    std::vector<std::jthread> threads;
    for (int i = 0; i != 4; ++i) {
      threads.emplace_back([&, i] { one(i); });
      entered.await_arrivals(i + 1);
      std::size_t whole = 0;
      for (int rank = 0; rank != 4; ++rank) whole += passes(group[rank]);
      CHECK(whole == 2 * (static_cast<std::size_t>(i) + 1));  // each at its root, and at the worker that it has reached
    }
    entered.open();
  }
  await_no_contexts(group);
  entered.reset();
}

}  // namespace cleanup_test

// Passes that fail: what is thrown, and what every worker is left with.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/wait.h>

#include "autograd/dist/dist_worker.hpp"
#include "dist_test.hpp"
#include "faulty_group.hpp"
#include "gate.hpp"
#include "rpc/worker/worker_core.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace errors_test {

using namespace dist_test;
using namespace std::chrono_literals;
using rpc_test::process_group;

std::atomic<int> failures_left{0};
// Throws on the way back, as long as failures are left.
struct fails_backward : ferry::function<fails_backward> {
  static constexpr std::string_view name = "fails_backward";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    if (failures_left.fetch_sub(1) > 0) throw std::domain_error("simulated");
    failures_left.store(0);
    return gradient;
  }
};
// A gradient of another shape than the value.
struct wrong_shape : ferry::function<wrong_shape> {
  static constexpr std::string_view name = "wrong_shape";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor&) { return ferry::zeros({17}, ferry::dtype::f64); }
};

tensor chain(const tensor& a, const std::vector<std::string>& next) {
  if (next.empty()) return fails_backward::apply(a);
  return ferry::rpc_sync<chain>(next.front(), a, std::vector<std::string>(next.begin() + 1, next.end())) * 1.0;
}
tensor wrong(const tensor& a) { return wrong_shape::apply(a); }
tensor unlike(const tensor& a, const tensor& b) { return a + b; }

// ---- in processes

std::uint64_t passes_here() {
  return ferry::detail::dist_worker::of(*ferry::detail::current_worker())->running_passes();
}
std::uint64_t contexts_here() {
  return ferry::detail::dist_worker::of(*ferry::detail::current_worker())->context_count();
}
ferry_test::gate reached;
void tell_reached() { reached.arrive(); }
ferry::future<void> wait_for_release() {
  static ferry::promise<void> never;
  return never.get_future();
}
// On the way back, tells worker0, and waits there for a call that is never answered.
struct stays : ferry::function<stays> {
  static constexpr std::string_view name = "stays";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    ferry::rpc_sync<tell_reached>("worker0");
    ferry::rpc_sync<wait_for_release>({"worker0", {.timeout = ferry::no_timeout}});
    return gradient;
  }
};
tensor staying_chain(const tensor& a, const std::vector<std::string>& next) {
  if (next.empty()) return stays::apply(a);
  return ferry::rpc_sync<staying_chain>(next.front(), a, std::vector<std::string>(next.begin() + 1, next.end())) * 2.0;
}
// A whole pass with this worker as its root.
void train(const std::vector<std::string>& next) {
  const dist::context context;
  const tensor a = leaf({1, 2});
  context.backward(ferry::sum(staying_chain(a, next)));
}

template <class Check>
void await_there(const ferry::worker& self, const char* name, const Check& holds) {
  await([&] { return holds(self.rpc_sync<passes_here>(name), self.rpc_sync<contexts_here>(name)); });
}

TEST_CASE("[row 246] an error of a call within a context is the call's; the context goes on") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor other = leaf({1, 2});
  for (const auto mode : {dist::backward_mode::smart, dist::backward_mode::fast}) {
    const dist::context context(group[0]);
    expect_error(errc::bad_shape, "", [&] { (void)group[0].rpc_sync<unlike>("worker1", a, other); });
    context.backward(ferry::sum(group[0].rpc_sync<twice>("worker1", a)), {.mode = mode, .limit = 60s});
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2, 2});
    CHECK_FALSE(context.gradients().contains(other));
  }
}

TEST_CASE("[row 257] [row 266] an error in a node deep in a chain of four workers reaches the root, and every worker") {
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  for (const auto mode : {dist::backward_mode::smart, dist::backward_mode::fast}) {
    failures_left = 1;
    dist::context_id id;
    {
      const dist::context context(group[0]);
      id = context.id();
      const tensor b =
          group[0].rpc_sync<chain>("worker1", a, std::vector<std::string>{"worker2", "worker3", "worker1", "worker3"});
      try {
        context.backward(ferry::sum(b), {.retain_graph = true, .mode = mode});
        FAIL_CHECK("the pass did not fail");
      } catch (const ferry::remote_error& e) {
        const std::string text = e.what();
        CAPTURE(text);
        CHECK(text.find("worker3: backward of fails_backward (node ") != std::string::npos);
        CHECK(text.find("simulated") != std::string::npos);
        CHECK(e.type_name() == "std::domain_error");
      }
      // Everyone was told before it was thrown.
      for (int rank = 0; rank != 4; ++rank) {
        CHECK(passes(group[rank]) == 0);
        CHECK_FALSE(dist::inspect(id, group[rank]).pass_runs);
      }
      CHECK(context.gradients().empty());
      context.backward(ferry::sum(b), {.mode = mode});
      CHECK(numbers(context.gradients().at(a)) == vec{1, 1, 1});
    }
    await_no_contexts(group);
  }
}

TEST_CASE("fifty passes that fail, and then good ones, in one context") {
  auto mode = dist::backward_mode::smart;
  SUBCASE("smart") {}
  SUBCASE("fast: the root knows only the first of them") { mode = dist::backward_mode::fast; }
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<chain>("worker1", a, std::vector<std::string>{"worker2", "worker3"});
  for (int round = 0; round != 50; ++round) {
    failures_left = 1;
    CHECK_THROWS_AS(context.backward(ferry::sum(b), {.retain_graph = true, .mode = mode}), const ferry::remote_error&);
    for (int rank = 0; rank != 4; ++rank) CHECK(passes(group[rank]) == 0);
  }
  for (int round = 0; round != 49; ++round) context.backward(ferry::sum(b), {.retain_graph = true, .mode = mode});
  CHECK(numbers(context.gradients().at(a)) == vec{49, 49, 49});
}

TEST_CASE(
    "a pass that takes every message for used is over at all workers before it throws, also at those that the root "
    "does not know") {
  faulty_group group(4, 60s);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<chain>("worker1", a, std::vector<std::string>{"worker2", "worker3"});
  // The root hears from worker3 at once, worker2 later.
  using enum ferry::message_kinds;
  group.faults.add(
      {.action = ferry::fault_action::delay, .kinds = request, .method = "ferry/autograd/failure", .peer = "worker2"});
  group.faults.add(
      {.action = ferry::fault_action::delay, .kinds = reply, .method = "ferry/autograd/gradients", .peer = "worker2"});
  for (int round = 0; round != 3; ++round) {
    failures_left = 1;
    CHECK_THROWS_AS(context.backward(ferry::sum(b), {.retain_graph = true, .mode = dist::backward_mode::fast}),
                    const ferry::remote_error&);
    for (int rank = 0; rank != 4; ++rank) CHECK(passes(group[rank]) == 0);
  }
  CHECK(group.faults.counters().delayed >= 3);
}

TEST_CASE("errors of ferry keep their kind") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<wrong>("worker1", a);
  expect_error(errc::bad_shape, "worker1: backward of wrong_shape", [&] { context.backward(ferry::sum(b)); });
  CHECK(passes(group[1]) == 0);
}

TEST_CASE("a graph that an earlier pass has released") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor b = ferry::sum(group[0].rpc_sync<mul>("worker1", a, a));
  context.backward(b);
  expect_error(errc::invalid_argument, "worker1: backward of mul", [&] { context.backward(b); });
  CHECK(passes(group[0]) + passes(group[1]) == 0);
  CHECK(numbers(context.gradients().at(a)) == vec{2, 4, 6});
}

TEST_CASE("[row 258] a context that the worker does not have") {
  cluster group(2);
  const tensor root = ferry::sum(leaf({1, 2}) * 2.0);
  const dist::context_id unknown{12345};
  expect_error(errc::invalid_argument, "could not find context 0.12345", [&] { dist::backward(unknown, root); });
  expect_error(errc::invalid_argument, "no context", [&] { dist::backward(root); });
  dist::context_id over;
  {
    const dist::context context(group[1]);
    over = context.id();
  }
  expect_error(errc::invalid_argument, "could not find context", [&] { dist::backward(over, root); });
  expect_error(errc::invalid_argument, "could not find context", [&] { (void)dist::backward_async(over, root); });
}

TEST_CASE("[row 260] roots that cannot be: each has its own error") {
  cluster group(2);
  const dist::context context(group[0]);
  const tensor a = leaf({1, 2});
  const tensor good = ferry::sum(group[0].rpc_sync<twice>("worker1", a));
  expect_error(errc::invalid_argument, "without a root", [&] { context.backward(std::vector<tensor>{}); });
  expect_error(errc::invalid_argument, "root 0 is an undefined tensor", [&] { context.backward(tensor()); });
  expect_error(errc::invalid_argument, "root 1 requires no gradient", [&] {
    context.backward({good, ferry::tensor_of({1.})});
  });
  expect_error(errc::invalid_argument, "only for one with a single element",
               [&] { context.backward(group[0].rpc_sync<twice>("worker1", a)); });
  expect_error(errc::invalid_argument, "is a leaf", [&] { context.backward(leaf({1})); });
  expect_error(errc::bad_shape, "the gradient given for root 0", [&] {
    context.backward(good, {.gradients = {ferry::tensor_of({1., 2.})}});
  });
  expect_error(errc::invalid_argument, "2 gradients were given for 1 roots", [&] {
    context.backward(good, {.gradients = {tensor(), tensor()}});
  });
  CHECK(passes(group[0]) == 0);
  context.backward(good);
  CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
}

TEST_CASE("a graph that reaches into another context is refused") {
  cluster group(2);
  const tensor a = leaf({1, 2});
  tensor from_other;
  std::jthread([&] {
    const dist::context other(group[0]);
    from_other = group[0].rpc_sync<twice>("worker1", a);
  }).join();
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<add>("worker1", from_other, a);
  expect_error(errc::invalid_argument, "do not go from one context to another",
               [&] { context.backward(ferry::sum(b)); });
  CHECK(passes(group[0]) + passes(group[1]) == 0);
  context.backward(ferry::sum(group[0].rpc_sync<add>("worker1", ferry::detach(from_other), a)));
  CHECK(numbers(context.gradients().at(a)) == vec{1, 1});
}

TEST_CASE("a limit ends a pass on every worker") {
  cluster group(3);
  const tensor a = leaf({1, 2});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<staying_chain>("worker1", a, std::vector<std::string>{"worker2"});
  expect_error(errc::rpc_timeout, "took longer than its limit",
               [&] { context.backward(ferry::sum(b), {.retain_graph = true, .limit = 200ms}); });
  await([&] { return passes(group[0]) + passes(group[1]) + passes(group[2]) == 0; });
  CHECK(reached.arrived() == 1);
  reached.reset();
  group.shutdown(false);
}

// Its formula waits until the test lets it go on.
ferry_test::gate formula;
struct waits_backward : ferry::function<waits_backward> {
  static constexpr std::string_view name = "waits_backward";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor& gradient) {
    formula.pass();
    return gradient;
  }
};
tensor waiting(const tensor& a) { return waits_backward::apply(a) * 1.0; }

TEST_CASE("a pass whose future is cancelled ends on every worker, adds nothing later, and another one can follow") {
  cluster group(2);
  const tensor a = leaf({1, 2});
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<waiting>("worker1", a);
  const tensor unaffected = group[0].rpc_sync<twice>("worker1", a);
  const ferry::future<void> pass = dist::backward_async(context, ferry::sum(b));
  formula.await_arrivals(1);
  pass.cancel();
  expect_error(errc::call_cancelled, "the pass was cancelled", [&] { pass.get(); });
  context.backward(ferry::sum(unaffected));
  CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  formula.open();
  await([&] { return passes(group[0]) + passes(group[1]) == 0; });
  CHECK(numbers(context.gradients().at(a)) == vec{2, 2});
  formula.reset();
  // One that is over has nothing to cancel.
  const ferry::future<void> over = dist::backward_async(context, ferry::sum(group[0].rpc_sync<twice>("worker1", a)));
  over.wait();
  over.cancel();
  over.get();
  CHECK(numbers(context.gradients().at(a)) == vec{4, 4});
}

// ---------------------------------------------------------------- processes

TEST_CASE("[row 166] workers that are dead when the pass comes to them: it fails promptly, and the others forget it") {
  process_group all(4);
  ferry::worker& self = all.self;
  const tensor a = leaf({1, 2, 3});
  {
    const dist::context context(self);
    const tensor b = self.rpc_sync<chain>("worker1", a, std::vector<std::string>{"worker2", "worker3"});
    const tensor unaffected = self.rpc_sync<twice>("worker2", a);
    all.child(3).kill(SIGKILL);
    CHECK(all.child(3).wait() == 128 + SIGKILL);
    try {
      context.backward(ferry::sum(b), {.retain_graph = true});
      FAIL_CHECK("a pass through a dead worker succeeded");
    } catch (const ferry::error& e) {
      CAPTURE(e.what());
      CHECK((e.kind() == errc::peer_lost || e.kind() == errc::connect_failed));
      CHECK(std::string(e.what()).find("worker3") != std::string::npos);
    }
    CHECK(passes(self) == 0);
    for (const char* each : {"worker1", "worker2"})
      await_there(self, each, [](auto running, auto) { return running == 0; });
    context.backward(ferry::sum(unaffected));
    CHECK(numbers(context.gradients().at(a)) == vec{2, 2, 2});
  }
  for (const char* each : {"worker1", "worker2"})
    await_there(self, each, [](auto running, auto kept) { return running == 0 && kept == 0; });
  CHECK(contexts(self) == 0);
  self.shutdown(false);
  for (int rank = 1; rank != 3; ++rank) all.child(rank).kill(SIGKILL);
}

TEST_CASE("a worker that is killed during a pass ends it on all others") {
  process_group all(4);
  ferry::worker& self = all.self;
  const tensor a = leaf({1, 2, 3});
  {
    const dist::context context(self);
    const tensor b = self.rpc_sync<staying_chain>("worker1", a, std::vector<std::string>{"worker2", "worker3"});
    auto pass = dist::backward_async(context, ferry::sum(b));
    reached.await_arrivals(1);
    for (const char* each : {"worker1", "worker2", "worker3"}) CHECK(self.rpc_sync<passes_here>(each) == 1);
    all.child(2).kill(SIGKILL);  // between the root and the node that runs
    expect_error(errc::peer_lost, "worker2", [&] { pass.get(); });
    CHECK(passes(self) == 0);
    for (const char* each : {"worker1", "worker3"})
      await_there(self, each, [](auto running, auto) { return running == 0; });
  }
  for (const char* each : {"worker1", "worker3"}) await_there(self, each, [](auto, auto kept) { return kept == 0; });
  reached.reset();
  self.shutdown(false);
  for (int rank : {1, 3}) all.child(rank).kill(SIGKILL);
}

TEST_CASE("the root of a pass is killed: nothing of it is left at the others") {
  process_group all(4);
  ferry::worker& self = all.self;
  auto training = self.rpc_async<train>({"worker1", {.timeout = ferry::no_timeout}},
                                        std::vector<std::string>{"worker2", "worker3"});
  reached.await_arrivals(1);
  CHECK(self.rpc_sync<passes_here>("worker2") == 1);
  CHECK(self.rpc_sync<contexts_here>("worker3") == 1);
  all.child(1).kill(SIGKILL);
  expect_error(errc::peer_lost, "worker1", [&] { training.get(); });
  for (const char* each : {"worker2", "worker3"})
    await_there(self, each, [](auto running, auto kept) { return running == 0 && kept == 0; });
  CHECK(contexts(self) == 0);  // the call of worker3 within the pass was not in the context
  reached.reset();
  self.shutdown(false);
  for (int rank : {2, 3}) all.child(rank).kill(SIGKILL);
}

}  // namespace errors_test

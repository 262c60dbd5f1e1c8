// Contexts: their ids, where they are in force, and how they go along with calls.

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dist_test.hpp"
#include "gate.hpp"

namespace contexts_test {

using namespace dist_test;

std::uint64_t current_here() {
  const auto here = dist::current();
  return here ? here->value : ~std::uint64_t{0};
}
std::uint64_t current_there(const std::string& next) { return ferry::rpc_sync<current_here>(next); }
ferry::task<std::uint64_t> current_later(std::string next) {
  const std::uint64_t before = current_here();
  const std::uint64_t there = co_await ferry::rpc_async<current_here>(next);
  co_return before == there ? current_here() : 0;
}
ferry::future<std::uint64_t> current_in_continuation(const std::string& next) {
  return ferry::rpc_async<current_here>(next).then(
      [](std::uint64_t there) { return there == current_here() ? there : 0; });
}

ferry_test::gate slow;
tensor slow_value() {
  slow.pass();
  return leaf({1, 2});
}

tensor fails(const tensor& a) { throw std::domain_error("no value of " + std::to_string(a.numel())); }

ferry::task<vec> train(const ferry::worker& self, tensor a) {
  const dist::context context(self);
  const tensor b = co_await self.rpc_async<twice>("worker1", a);
  const tensor c = co_await self.rpc_async<mul>("worker1", b, a);
  dist::backward(ferry::sum(c));
  co_return numbers(context.gradients().at(a));
}

TEST_CASE("[row 234] ids have their worker in the top 16 bits, and name nothing after the scope") {
  cluster group(2);
  std::set<std::uint64_t> seen;
  for (int i = 0; i != 200; ++i) {
    dist::context_id id;
    {
      const dist::context context(group[1]);
      id = context.id();
      CHECK((id.value >> 48U) == 1);
      CHECK(id.made_by() == ferry::worker_id{1});
      CHECK(dist::exists(id, group[1]));
      CHECK_FALSE(dist::exists(id, group[0]));
      CHECK(dist::get_gradients(id, group[1]).empty());
      CHECK(dist::current() == id);
    }
    CHECK(seen.insert(id.value).second);
    CHECK_FALSE(dist::current());
    CHECK_FALSE(dist::exists(id, group[1]));
    expect_error(errc::invalid_argument, "could not find context", [&] { (void)dist::get_gradients(id, group[1]); });
    expect_error(errc::invalid_argument, "could not find context", [&] { (void)dist::inspect(id, group[1]); });
  }
  const dist::context_id last{(std::uint64_t{1} << 48U) + 281'474'976'710'655};
  CHECK(last.made_by() == ferry::worker_id{1});
  CHECK(to_string(last) == "1.281474976710655");
  expect_error(errc::invalid_argument, "could not find context", [&] { (void)dist::get_gradients(last, group[1]); });
}

TEST_CASE("contexts do not nest; every thread may have one of its own") {
  cluster group(2);
  const dist::context context(group[0]);
  expect_error(errc::invalid_argument, "do not nest", [&] { const dist::context inner(group[0]); });
  expect_error(errc::invalid_argument, "do not nest", [&] { const dist::attached_scope inner(context); });
  CHECK(dist::current() == context.id());
  std::optional<dist::context_id> there;
  std::jthread([&] {
    CHECK_FALSE(dist::current());
    const dist::context own(group[0]);
    there = own.id();
    CHECK(dist::current() == own.id());
  }).join();
  REQUIRE(there);
  CHECK(*there != context.id());
  CHECK_FALSE(dist::exists(*there, group[0]));
}

TEST_CASE("a context that is over is not in force, also where a scope of values that it is part of goes on") {
  cluster group(2);
  for (const bool elsewhere : {false, true}) {
    CAPTURE(elsewhere);
    auto context = std::make_unique<dist::context>(group[0]);
    const ferry::context_values_scope goes_on(ferry::current_values());
    if (elsewhere) {
      std::thread([&] { context.reset(); }).join();
    } else {
      context.reset();
    }
    CHECK_FALSE(dist::current());
    CHECK(group[0].rpc_sync<current_here>("worker1") == ~std::uint64_t{0});
    const dist::context next(group[0]);
    CHECK(dist::current() == next.id());
    CHECK(group[0].rpc_sync<current_here>("worker1") == next.id().value);
  }
  CHECK_FALSE(dist::current());
  CHECK(group[1].rpc_sync<current_here>("worker0") == ~std::uint64_t{0});
}

TEST_CASE("a context ends when an exception leaves its scope") {
  cluster group(2);
  dist::context_id id;
  try {
    const dist::context context(group[0]);
    id = context.id();
    (void)group[0].rpc_sync<fails>("worker1", leaf({1}));
  } catch (const std::domain_error&) {
  }
  CHECK_FALSE(dist::current());
  CHECK_FALSE(dist::exists(id, group[0]));
  await_no_contexts(group);
}

TEST_CASE("[row 280] handlers, the calls that they make, coroutines and continuations are in the context of the call") {
  cluster group(3);
  const std::uint64_t none = ~std::uint64_t{0};
  CHECK(group[0].rpc_sync<current_here>("worker1") == none);
  {
    const dist::context context(group[0]);
    const std::uint64_t id = context.id().value;
    CHECK(group[0].rpc_sync<current_here>("worker1") == id);
    CHECK(group[0].rpc_sync<current_here>("worker0") == id);
    for (const char* next : {"worker2", "worker1", "worker0"}) {
      CHECK(group[0].rpc_sync<current_there>("worker1", next) == id);
      CHECK(group[0].rpc_sync<current_later>("worker1", std::string(next)) == id);
      CHECK(group[0].rpc_sync<current_in_continuation>("worker1", next) == id);
    }
    CHECK(group[0].remote<current_here>("worker2").to_here() == id);
    // A value that is fetched late: what goes on then runs on another thread, and is in the context.
    const auto there = group[0].remote<slow_value>("worker1");
    const auto thread = std::this_thread::get_id();
    auto rest = group[0].rpc_async<current_here>("worker2").then([&](std::uint64_t) { return there.to_here(); });
    auto seen = rest.then([&](const tensor& value) {
      CHECK(std::this_thread::get_id() != thread);
      const std::uint64_t here = current_here();
      const tensor sent = group[0].rpc_sync<twice>("worker2", value);
      CHECK(sent.requires_grad());
      return here;
    });
    slow.await_arrivals(1);
    slow.open();
    CHECK(seen.get() == id);
    // Outside of the graph nothing is recorded.
    const ferry::no_grad outside;
    CHECK(group[0].rpc_sync<current_here>("worker1") == none);
    slow.reset();
  }
  CHECK(group[0].rpc_sync<current_here>("worker1") == none);
  await_no_contexts(group);
}

TEST_CASE("several threads attach to one context, and their calls belong to it") {
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  std::vector<tensor> parts(8);
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i != parts.size(); ++i) {
      threads.emplace_back([&, i] {
        CHECK_FALSE(dist::current());
        const dist::attached_scope scope(context.id(), group[0]);
        CHECK(dist::current() == context.id());
        parts[i] = group[0].rpc_sync<mul>(i % 2 == 0 ? "worker1" : "worker2", a, a * static_cast<double>(i));
      });
    }
  }
  tensor whole = parts[0];
  for (std::size_t i = 1; i != parts.size(); ++i) whole = whole + parts[i];
  context.backward(ferry::sum(whole));
  CHECK(numbers(context.gradients().at(a)) == vec{56, 112, 168});  // 2 a (0 + ... + 7)
  std::jthread([&] {
    expect_error(errc::invalid_argument, "could not find context",
                 [&] { const dist::attached_scope scope({context.id().value + 1}, group[0]); });
    expect_error(errc::invalid_argument, "could not find context",
                 [&] { const dist::attached_scope scope(context.id(), group[3]); });
  }).join();
}

TEST_CASE("another worker of the process cannot call within a context") {
  cluster group(2);
  const dist::context context(group[0]);
  expect_error(errc::invalid_argument, "the call is made by another worker of the process",
               [&] { (void)group[1].rpc_sync<current_here>("worker0"); });
  CHECK(group[0].rpc_sync<current_here>("worker1") == context.id().value);
}

TEST_CASE("a context is held across co_await") {
  cluster group(2);
  const vec found = ferry::sync_wait(train(group[0], leaf({1, 2, 3})));
  CHECK(found == vec{4, 8, 12});
  CHECK_FALSE(dist::current());
  await_no_contexts(group);
}

TEST_CASE("a context of a worker that was shut down") {
  cluster group(2);
  const dist::context context(group[0]);
  (void)group[0].rpc_sync<twice>("worker1", leaf({1}));
  group.shutdown();
  CHECK(context.id().made_by() == ferry::worker_id{0});
  expect_error(errc::invalid_argument, "is over", [&] { (void)context.gradients(); });
  std::jthread([&] { expect_error(errc::not_initialized, "", [&] { const dist::context late(group[0]); }); }).join();
}

}  // namespace contexts_test

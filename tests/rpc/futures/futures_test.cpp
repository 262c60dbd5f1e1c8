// The futures of calls: what future_test.cpp shows for local ones, with a worker at the other end.

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace futures_test {

using ferry_test::captured_log;
using ferry_test::cluster;

int add(int a, int b) { return a + b; }
int fail(const std::string& text) { throw std::domain_error(text); }
ferry_test::gate door;
int slow(int value) {
  door.pass();
  return value;
}

constexpr ferry::context_key<int> mark("mark");
int mark_here() {
  const int* value = ferry::current_value(mark);
  return value ? *value : -1;
}
/// A call to worker 0 under a mark of its own; -2 if the mark is not that afterwards.
ferry::task<int> under_mark(int value) {
  const ferry::context_value_scope scope(mark, value);
  for (int i = 0; i != 10; ++i) {
    if (co_await ferry::rpc_async<add>("worker0", value, 1) != value + 1 || mark_here() != value) co_return -2;
  }
  co_return mark_here();
}
/// Two coroutines at once in one handler, which has no mark itself.
ferry::task<std::vector<int>> two_marks(int first) {
  auto a = ferry::start(under_mark(first));
  auto b = ferry::start(under_mark(first + 1));
  std::vector<int> seen{mark_here()};
  seen.push_back(co_await a);
  seen.push_back(co_await b);
  seen.push_back(mark_here());
  co_return seen;
}

TEST_CASE("[row 52] wait_all over failing calls throws, and each of their futures throws again and again") {
  captured_log log;
  cluster group(2);
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 20; ++i) calls.push_back(group[0].rpc_async<fail>("worker1", "expected error"));
  CHECK_THROWS_WITH_AS((void)ferry::wait_all(calls), "expected error", std::domain_error);
  for (const auto& each : calls) {
    for (int i = 0; i != 3; ++i) {
      CHECK_THROWS_WITH_AS(each.wait(), "expected error", std::domain_error);
      CHECK_THROWS_WITH_AS((void)each.get(), "expected error", std::domain_error);
    }
  }
}

TEST_CASE("[row 53] a call's future is ready after a value and after an error") {
  captured_log log;
  cluster group(2);
  door.reset();
  const auto pending = group[0].rpc_async<slow>("worker1", 1);
  CHECK_FALSE(pending.ready());
  door.open();
  pending.wait();
  CHECK(pending.ready());
  CHECK_FALSE(pending.failed());
  const auto failing = group[0].rpc_async<fail>("worker1", "x");
  CHECK_THROWS_AS(failing.wait(), std::domain_error);
  CHECK(failing.ready());
  CHECK(failing.failed());
}

TEST_CASE("[row 54] a continuation sees the value of a call, whose future can still be waited on") {
  cluster group(2);
  const auto call = group[0].rpc_async<add>("worker1", 1, 2);
  std::atomic<int> seen{0};
  const auto child = call.then([&](const ferry::future<int>& parent) {
    seen = parent.get();
    return parent.get() + 1;
  });
  CHECK(child.get() == 4);
  CHECK(seen == 3);
  CHECK(call.get() == 3);
  CHECK(call.get() == 3);
  // Attached afterwards it runs, too.
  CHECK(call.then([](int value) { return 2 * value; }).get() == 6);
}

TEST_CASE("[row 56] 20 continuations chained to a call run in order") {
  cluster group(2);
  auto result = group[0].rpc_async<add>("worker1", 0, 0);
  for (int i = 1; i <= 20; ++i) {
    result = result.then([i](int value) {
      if (value != i - 1) throw std::logic_error("out of order");
      return value + 1;
    });
  }
  CHECK(result.get() == 20);
}

TEST_CASE("[row 60] a continuation sees the error of its call and may throw another one, which its future carries") {
  captured_log log;
  cluster group(2);
  const auto call = group[0].rpc_async<fail>("worker1", "expected error");
  const auto child = call.then([](const ferry::future<int>& parent) -> int {
    try {
      return parent.get();
    } catch (const std::domain_error& e) {
      throw std::runtime_error(std::string("another: ") + e.what());
    }
  });
  CHECK_THROWS_WITH_AS((void)child.get(), "another: expected error", std::runtime_error);
  CHECK_THROWS_WITH_AS((void)call.get(), "expected error", std::domain_error);
  CHECK(call.then([](const ferry::future<int>&) { return 5; }).get() == 5);
}

TEST_CASE("[row 61] a continuation of a call runs although its future was dropped") {
  cluster group(2);
  ferry_test::gate ran;
  group[0].rpc_async<add>("worker1", 1, 2).add_done_callback([&](int value) {
    if (value == 3) ran.arrive();
  });
  (void)group[0].rpc_async<add>("worker1", 1, 2).then([&](int) { ran.arrive(); });
  ran.await_arrivals(2);
}

TEST_CASE("[row 62] completing a promise that a call's continuation has completed is an error") {
  cluster group(2);
  ferry::promise<int> promise;
  const auto result = promise.get_future();
  group[0].rpc_async<add>("worker1", 1, 2).add_done_callback([&](int value) { promise.set_value(value); });
  CHECK(result.get() == 3);
  expect_error(ferry::errc::promise_satisfied, "", [&] { promise.set_value(4); });
  CHECK(result.get() == 3);
}

TEST_CASE("[row 68] wait_all fails at once when one call fails, although another is still pending") {
  captured_log log;
  cluster group(2);
  door.reset();
  const auto pending = group[0].rpc_async<slow>("worker1", 1);
  CHECK_THROWS_AS((void)ferry::wait_all(std::vector{pending, group[0].rpc_async<fail>("worker1", "x")}),
                  std::domain_error);
  CHECK_FALSE(pending.ready());
  door.open();
  CHECK(pending.get() == 1);
}

TEST_CASE("a call's continuations and coroutines run on handler threads and may call on, blocking") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const auto here = std::this_thread::get_id();
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != 50; ++i) {
    results.push_back(group[0].rpc_async<add>("worker1", i, 1).then([&, here](int sum) {
      if (std::this_thread::get_id() == here) throw std::logic_error("on the caller's thread");
      return group[0].rpc_sync<add>("worker1", sum, 1) + group[0].rpc_async<add>("worker1", 0, 1).get();
    }));
  }
  for (int i = 0; i != 50; ++i) CHECK(results[static_cast<std::size_t>(i)].get() == i + 3);

  const auto coroutine = [](ferry::worker& self, int i) -> ferry::task<int> {
    const int sum = co_await self.rpc_async<add>({"worker1", {.timeout = std::chrono::seconds(60)}}, i, 1);
    co_return self.rpc_sync<add>("worker1", sum, co_await self.rpc_async<add>("worker1", 0, 1));
  };
  CHECK(ferry::sync_wait(coroutine(group[0], 5)) == 7);
  std::vector<ferry::future<int>> tasks;
  for (int i = 0; i != 50; ++i) tasks.push_back(ferry::start(coroutine(group[0], i)));
  for (int i = 0; i != 50; ++i) CHECK(tasks[static_cast<std::size_t>(i)].get() == i + 2);
}

TEST_CASE("two threads, and two coroutines of one handler, have different context values, which stay in their worker") {
  cluster group(2);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 0; i != 4; ++i) {
    threads.emplace_back([&, i] {
      const ferry::context_value_scope scope(mark, 100 * i);
      for (int round = 0; round != 10; ++round) {
        const auto call = group[0].rpc_async<two_marks>("worker1", 10 * i);
        const auto after = call.then([](const std::vector<int>&) { return mark_here(); });
        if (call.get() != std::vector<int>{-1, 10 * i, 10 * i + 1, -1}) ++wrong;
        if (after.get() != 100 * i || mark_here() != 100 * i) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

}  // namespace futures_test

#include <ferry/rpc/task.hpp>

#include <ferry/rpc/promise.hpp>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "test_executor.hpp"

namespace task_test {

using ferry::errc;
using ferry_test::entered_context;
using ferry_test::manual_executor;
using ferry_test::pool_executor;

namespace {

/// Counts itself, to see that a frame is destroyed exactly once.
struct counted {
  static inline std::atomic<int> alive = 0;
  int value = 0;
  explicit counted(int v = 0) : value(v) { ++alive; }
  counted(const counted& other) : value(other.value) { ++alive; }
  counted(counted&& other) noexcept : value(other.value) { ++alive; }
  counted& operator=(const counted&) = default;
  ~counted() { --alive; }
};

ferry::task<int> answer() { co_return 42; }
ferry::task<int> throws() {
  throw std::invalid_argument("from the task");
  co_return 0;
}
ferry::task<int> add_one(ferry::future<int> f) { co_return co_await f + 1; }
ferry::task<int> add_two(ferry::future<int> f) { co_return co_await add_one(std::move(f)) + 1; }
ferry::task<void> nothing() { co_return; }
ferry::task<std::unique_ptr<int>> move_only() { co_return std::make_unique<int>(5); }
ferry::task<int> with_parameter(counted c, ferry::future<int> f) { co_return co_await f + c.value; }
ferry::future<int> eager(counted c, ferry::future<int> f) { co_return co_await f + c.value; }
ferry::future<std::string> eager_ready() { co_return "at once"; }
ferry::future<void> eager_throws() {
  throw std::runtime_error("eager");
  co_return;
}

errc kind_of(const std::exception_ptr& e) {
  try {
    std::rethrow_exception(e);
  } catch (const ferry::error& error) {
    return error.kind();
  }
}

/// A coroutine type that is not ferry's, as users have.
struct foreign {
  struct promise_type {
    foreign get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
};

/// An awaitable that is not ferry's: the test resumes the handle.
struct parking_place {
  std::coroutine_handle<> parked;
  auto operator co_await() {
    struct awaiter {
      parking_place& place;
      bool await_ready() const noexcept { return false; }
      void await_suspend(std::coroutine_handle<> h) noexcept { place.parked = h; }
      void await_resume() const noexcept {}
    };
    return awaiter{*this};
  }
};

}  // namespace

TEST_CASE("sync_wait runs a task and gives its value or its error") {
  CHECK(ferry::sync_wait(answer()) == 42);
  CHECK_THROWS_WITH_AS(ferry::sync_wait(throws()), "from the task", std::invalid_argument);
  ferry::sync_wait(nothing());
  CHECK(*ferry::sync_wait(move_only()) == 5);
}

TEST_CASE("a task does nothing until it is started, and then runs once") {
  bool ran = false;
  auto make = [&]() -> ferry::task<void> {
    ran = true;
    co_return;
  };
  { const auto dropped = make(); }
  CHECK_FALSE(ran);
  auto t = make();
  ferry::start(std::move(t)).get();
  CHECK(ran);
  CHECK_FALSE(t.valid());  // NOLINT(bugprone-use-after-move)
  CHECK_THROWS_AS(ferry::sync_wait(std::move(t)), ferry::error);
  auto twice = [](ferry::task<int> inner) -> ferry::task<int> {
    const int first = co_await std::move(inner);
    co_return first + co_await std::move(inner);
  };
  const auto failed = ferry::start(twice(answer()));
  CHECK(kind_of(failed.error()) == errc::no_state);
}

TEST_CASE("[row 74] tasks await futures and each other") {
  ferry::promise<int> promise;
  const auto result = ferry::start(add_two(promise.get_future()));
  const auto chained = result.then([](int value) { return value * 10; });
  CHECK_FALSE(result.ready());
  promise.set_value(1);
  CHECK(result.get() == 3);
  CHECK(chained.get() == 30);
}

TEST_CASE("an error passes through every task that awaits it, and can be caught in one") {
  ferry::promise<int> promise;
  const auto passed = ferry::start(add_two(promise.get_future()));
  auto catching = [](ferry::future<int> f) -> ferry::task<std::string> {
    try {
      co_await add_two(f);
    } catch (const std::runtime_error& e) {
      co_return e.what();
    }
    co_return "nothing";
  };
  const auto caught = ferry::start(catching(promise.get_future()));
  promise.set_exception(std::make_exception_ptr(std::runtime_error("deep")));
  CHECK_THROWS_WITH(passed.get(), "deep");
  CHECK(caught.get() == "deep");
}

TEST_CASE("frames, parameters and results are destroyed exactly once, before the future is complete") {
  for (const bool pending : {false, true}) {
    ferry::promise<int> promise;
    if (!pending) promise.set_value(1);
    const auto a = ferry::start(with_parameter(counted(4), promise.get_future()));
    const auto b = eager(counted{5}, promise.get_future());
    auto outer = [](ferry::future<int> f) -> ferry::task<int> {
      counted local(1);
      co_return co_await with_parameter(counted{6}, f) + local.value;
    };
    const auto c = ferry::start(outer(promise.get_future()));
    if (pending) CHECK(counted::alive > 0);
    if (pending) promise.set_value(1);
    CHECK(a.get() == 5);
    CHECK(b.get() == 6);
    CHECK(c.get() == 8);
    CHECK(counted::alive == 0);
  }
  { const auto never_started = with_parameter(counted(1), ferry::future<int>()); }
  CHECK(counted::alive == 0);
  auto throwing = [](counted c) -> ferry::task<counted> {
    if (c.value == 1) throw std::runtime_error("x");
    co_return c;
  };
  CHECK(ferry::sync_wait(throwing(counted(2))).value == 2);
  CHECK_THROWS(ferry::sync_wait(throwing(counted(1))));
  CHECK(counted::alive == 0);
}

TEST_CASE("braced arguments inside co_await are destroyed once") {
  struct options {
    std::chrono::seconds timeout{0};
    std::stop_token* stop = nullptr;
  };
  struct destination {
    const char* name;
    options how;
  };
  static constexpr auto call = [](destination, counted c) { return ferry::make_ready_future(std::move(c)); };
  auto caller = []() -> ferry::task<int> {
    std::stop_token token;
    const counted got = co_await call({"w", {.timeout = std::chrono::seconds(5), .stop = &token}}, counted(7));
    co_return got.value;
  };
  CHECK(ferry::sync_wait(caller()) == 7);
  CHECK(counted::alive == 0);
}

TEST_CASE("a coroutine may return a future, and starts at once") {
  CHECK(eager_ready().get() == "at once");
  CHECK(eager_ready().ready());
  CHECK_THROWS_WITH(eager_throws().get(), "eager");
}

TEST_CASE("a very long loop of awaits needs no stack") {
  auto ready_futures = [](int n) -> ferry::task<long> {
    const auto one = ferry::make_ready_future(1);
    long sum = 0;
    for (int i = 0; i < n; ++i) sum += co_await one;
    co_return sum;
  };
  auto one = []() -> ferry::task<int> { co_return 1; };
  auto tasks = [&](int n) -> ferry::task<long> {
    long sum = 0;
    for (int i = 0; i < n; ++i) sum += co_await one();
    co_return sum;
  };
  CHECK(ferry::sync_wait(ready_futures(1'000'000)) == 1'000'000);
  CHECK(ferry::sync_wait(tasks(1'000'000)) == 1'000'000);
  struct recursion {
    static ferry::task<int> down(int depth) {
      if (depth == 0) co_return 0;
      co_return co_await down(depth - 1) + 1;
    }
  };
  CHECK(ferry::sync_wait(recursion::down(100'000)) == 100'000);
}

TEST_CASE("two coroutines that wake each other without an executor need no stack") {
  constexpr int rounds = 100'000;
  std::vector<ferry::promise<int>> ping(rounds);
  std::vector<ferry::promise<int>> pong(rounds);
  auto left = [&]() -> ferry::task<int> {
    for (int i = 0; i < rounds; ++i) {
      ping[static_cast<std::size_t>(i)].set_value(i);
      co_await pong[static_cast<std::size_t>(i)].get_future();
    }
    co_return rounds;
  };
  auto right = [&]() -> ferry::task<int> {
    for (int i = 0; i < rounds; ++i) {
      co_await ping[static_cast<std::size_t>(i)].get_future();
      pong[static_cast<std::size_t>(i)].set_value(i);
    }
    co_return rounds;
  };
  const auto r = ferry::start(right());
  const auto l = ferry::start(left());
  CHECK(l.get() == rounds);
  CHECK(r.get() == rounds);
}

TEST_CASE("a coroutine resumes on the executor of its starter, under its context, without holding a thread") {
  const auto threads = std::make_shared<manual_executor>();
  ferry::promise<int> promise;
  ferry::call_context* where = nullptr;
  int steps = 0;
  auto body = [&](ferry::future<int> f) -> ferry::task<void> {
    CHECK(ferry::thread_context() == where);
    ++steps;
    co_await f;
    CHECK(ferry::thread_context() == where);
    ++steps;
    co_await f;  // ready: goes on at once
    co_await answer();
    CHECK(ferry::thread_context() == where);
    ++steps;
  };
  ferry::future<void> done;
  {
    const entered_context context(threads);
    where = context.get();
    done = ferry::start(body(promise.get_future()));
  }
  CHECK(steps == 1);
  promise.set_value(1);
  CHECK(steps == 1);
  CHECK(ferry::thread_context() == nullptr);
  CHECK(threads->run() == 1);
  CHECK(steps == 3);
  CHECK(done.ready());
}

TEST_CASE("many waiting coroutines need only the threads of the pool") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  ferry::promise<int> promise;
  std::vector<ferry::future<int>> results;
  for (int i = 0; i < 1000; ++i) results.push_back(ferry::start(add_two(promise.get_future())));
  promise.set_value(1);
  for (const auto& result : results) CHECK(result.get() == 3);
}

TEST_CASE("coroutines and awaitables that are not ferry's mix with tasks") {
  std::string trace;
  parking_place place;
  auto inner = [&]() -> ferry::task<int> {
    co_await place;
    co_return co_await answer() + co_await answer();
  };
  auto outer = [&]() -> foreign {
    trace += std::to_string(co_await inner());
    trace += std::to_string(co_await ferry::make_ready_future(7));
  };
  outer();
  CHECK(trace.empty());
  place.parked.resume();
  CHECK(trace == "847");

  const auto started = ferry::start(inner());
  place.parked.resume();
  CHECK(started.get() == 84);
}

TEST_CASE("cancelling the future of a started task drops its result, and the task runs on") {
  ferry::promise<int> promise;
  bool finished = false;
  auto body = [&](ferry::future<int> f) -> ferry::task<int> {
    const int value = co_await f;
    finished = true;
    co_return value;
  };
  const auto result = ferry::start(body(promise.get_future()));
  result.cancel();
  CHECK_THROWS_AS(result.get(), ferry::call_cancelled);
  promise.set_value(1);
  CHECK(finished);
}

TEST_CASE("awaiting a pending future allocates nothing" * doctest::skip(!ferry_test::counts_allocations)) {
  ferry::promise<int> promise;
  const auto f = promise.get_future();
  auto body = [](const ferry::future<int>& pending, std::size_t& used) -> ferry::task<void> {
    const auto before = ferry_test::allocations_of_this_thread();
    co_await pending;
    used = ferry_test::allocations_of_this_thread() - before;
  };
  std::size_t used = 99;
  const auto done = ferry::start(body(f, used));
  promise.set_value(1);
  CHECK(done.ready());
  CHECK(used == 0);
}

TEST_CASE("stress: coroutines race with the threads that complete what they await") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  for (int round = 0; round < 200; ++round) {
    constexpr int count = 10;
    std::vector<ferry::promise<int>> promises(count);
    auto sum_all = [&promises](counted guard) -> ferry::task<int> {
      int sum = guard.value;
      for (auto& promise : promises) sum += co_await add_one(promise.get_future());
      co_return sum;
    };
    std::thread completer([&promises] {
      for (auto& promise : promises) promise.set_value(1);
    });
    const auto a = ferry::start(sum_all(counted(1)));
    const auto b = ferry::start(sum_all(counted(2)));
    CHECK(a.get() == 1 + 2 * count);
    CHECK(b.get() == 2 + 2 * count);
    CHECK(counted::alive == 0);
    completer.join();
  }
}

}  // namespace task_test

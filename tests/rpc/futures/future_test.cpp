#include <ferry/rpc/future.hpp>

#include <ferry/base/log.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/rpc/task.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "allocation_count.hpp"
#include "test_executor.hpp"

namespace future_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::entered_context;
using ferry_test::manual_executor;
using ferry_test::pool_executor;

namespace {

template <class F>
errc error_of(F&& action) {
  try {
    action();
  } catch (const ferry::error& e) {
    return e.kind();
  }
  return errc{};
}

template <class T>
std::string text_of(const ferry::future<T>& failed) {
  try {
    failed.get();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

std::exception_ptr runtime_error(const char* text) { return std::make_exception_ptr(std::runtime_error(text)); }

struct counting_observer final : ferry::blocking_observer {
  int before = 0;
  int after = 0;
  bool refuse = false;
  void before_blocking() override {
    if (refuse) ferry::throw_error(errc::resource_exhausted, "too many handlers wait");
    ++before;
  }
  void after_blocking() noexcept override { ++after; }
};

struct observer_scope {
  explicit observer_scope(ferry::blocking_observer* observer) : previous(ferry::set_blocking_observer(observer)) {}
  ~observer_scope() { ferry::set_blocking_observer(previous); }
  ferry::blocking_observer* previous;
};

}  // namespace

TEST_CASE("a value reaches every copy of the handle, any number of times") {
  ferry::promise<std::string> promise;
  const auto a = promise.get_future();
  const auto b = a;
  CHECK_FALSE(a.ready());
  promise.set_value("hello");
  CHECK(a.ready());
  CHECK_FALSE(a.failed());
  CHECK(a.error() == nullptr);
  CHECK(a.get() == "hello");
  CHECK(b.get() == "hello");
  CHECK(&a.value() == &b.value());
  CHECK(promise.get_future().get() == "hello");
}

TEST_CASE("get() of the last handle moves the value out, of others copies it") {
  auto only = ferry::make_ready_future(std::vector<int>(1000, 7));
  const int* data = only.value().data();
  const std::vector<int> moved = std::move(only).get();
  CHECK(moved.data() == data);
  CHECK_FALSE(only.valid());

  auto first = ferry::make_ready_future(std::vector<int>(1000, 7));
  const auto second = first;
  CHECK(std::move(first).get().size() == 1000);
  CHECK(second.value().size() == 1000);
}

TEST_CASE("a move-only value is got once; afterwards there is an error that says so") {
  auto f = ferry::make_ready_future(std::make_unique<int>(3));
  CHECK(*f.value() == 3);
  CHECK(*f.get() == 3);
  CHECK(f.ready());
  CHECK(error_of([&] { (void)f.get(); }) == errc::no_state);
  CHECK(error_of([&] { (void)f.value(); }) == errc::no_state);

  std::vector<std::unique_ptr<int>> several;
  several.push_back(std::make_unique<int>(1));
  auto container = ferry::make_ready_future(std::move(several));  // claims to be copyable, and is not
  CHECK(*container.get().at(0) == 1);
  std::map<int, std::unique_ptr<int>> map;
  map.emplace(1, std::make_unique<int>(2));
  CHECK(ferry::make_ready_future(std::move(map)).get().size() == 1);
}

TEST_CASE("an empty future or promise is an error that names the operation") {
  const ferry::future<int> none;
  CHECK_FALSE(none.valid());
  CHECK(error_of([&] { none.wait(); }) == errc::no_state);
  CHECK(error_of([&] { (void)none.ready(); }) == errc::no_state);
  CHECK(error_of([&] { (void)none.then([](int) {}); }) == errc::no_state);
  CHECK(text_of(none).find("future::get() on an empty future") != std::string::npos);
  ferry::promise<int> promise;
  const auto taken = std::move(promise);
  CHECK(error_of([&] { promise.set_value(1); }) == errc::no_state);  // NOLINT(bugprone-use-after-move)
  CHECK(error_of([&] { (void)taken.get_future().value(); }) == errc::no_state);
}

TEST_CASE("[row 52] each wait for a failed future throws again") {
  const auto f = ferry::make_failed_future<int>(std::runtime_error("broken"));
  for (int i = 0; i < 2; ++i) {
    CHECK_THROWS_WITH_AS(f.wait(), "broken", std::runtime_error);
    CHECK_THROWS_WITH_AS(f.get(), "broken", std::runtime_error);
    CHECK_THROWS_WITH_AS(f.value(), "broken", std::runtime_error);
  }
  CHECK(f.wait_for(1s));
}

TEST_CASE("[row 53] a future is ready after a value and after an error") {
  ferry::promise<void> good;
  ferry::promise<void> bad;
  CHECK_FALSE(good.get_future().ready());
  good.set_value();
  bad.set_exception(runtime_error("no"));
  CHECK(good.get_future().ready());
  CHECK_FALSE(good.get_future().failed());
  CHECK(bad.get_future().ready());
  CHECK(bad.get_future().failed());
  CHECK(bad.get_future().error() != nullptr);
}

TEST_CASE("[row 54] a callback sees the value, and the future can still be waited on") {
  ferry::promise<int> promise;
  const auto f = promise.get_future();
  int seen = 0;
  const auto child = f.then([&](const ferry::future<int>& done) {
    seen = done.get();
    return seen + 1;
  });
  promise.set_value(41);
  CHECK(child.get() == 42);
  CHECK(seen == 41);
  CHECK(f.get() == 41);
}

TEST_CASE("[row 56] twenty chained callbacks") {
  ferry::promise<int> promise;
  auto f = promise.get_future();
  for (int i = 0; i < 20; ++i) f = f.then([](const ferry::future<int>& done) { return done.get() + 1; });
  promise.set_value(0);
  CHECK(f.get() == 20);
}

TEST_CASE("[row 58] a callback completes an outer promise, and starts nested work in a callback") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  auto outer = std::make_shared<ferry::promise<int>>();
  ferry::promise<int> inner;
  inner.get_future().then([outer, &threads](int value) {
    CHECK(threads->owns_this_thread());
    ferry::make_ready_future(value * 2).then([outer](int doubled) { outer->set_value(doubled + 1); });
  });
  inner.set_value(4);
  CHECK(outer->get_future().get() == 9);
}

TEST_CASE("[row 60] a callback sees the parent's error and throws another, which the child carries") {
  ferry::promise<int> promise;
  const auto parent = promise.get_future();
  const auto child = parent.then([](const ferry::future<int>& done) -> int {
    CHECK(text_of(done) == "first");
    throw std::invalid_argument("second");
  });
  const auto untouched = parent.then([](ferry::future<int>) { return 5; });
  const auto passed_by = parent.then([](int) -> std::string {
    FAIL("called without a value");
    return "";
  });
  promise.set_exception(runtime_error("first"));
  CHECK_THROWS_WITH_AS(child.get(), "second", std::invalid_argument);
  CHECK(text_of(parent) == "first");
  CHECK(untouched.get() == 5);
  CHECK(text_of(passed_by) == "first");
}

TEST_CASE("[row 61] a done callback runs, before and after completion, without a child") {
  ferry::promise<int> promise;
  int sum = 0;
  promise.get_future().add_done_callback([&](const ferry::future<int>& done) { sum += done.get(); });
  promise.set_value(2);
  promise.get_future().add_done_callback([&](int value) { sum += 10 * value; });
  CHECK(sum == 22);
  ferry::make_failed_future<int>(runtime_error("x")).add_done_callback([&](int) { sum = -1; });
  CHECK(sum == 22);
}

TEST_CASE("what a done callback throws is logged") {
  static std::string logged;
  ferry::set_log_sink([](ferry::log_level, std::string_view text, void*) { logged = text; }, nullptr);
  ferry::make_ready_future(1).add_done_callback([](int) { throw std::runtime_error("lost"); });
  ferry::set_log_sink(nullptr, nullptr);
  CHECK(logged.find("lost") != std::string::npos);
}

TEST_CASE("[row 62] completing twice is an error, and changes nothing") {
  ferry::promise<int> promise;
  promise.set_value(1);
  CHECK(error_of([&] { promise.set_value(2); }) == errc::promise_satisfied);
  CHECK(error_of([&] { promise.set_exception(runtime_error("x")); }) == errc::promise_satisfied);
  CHECK_FALSE(promise.try_set_value(3));
  CHECK_FALSE(promise.try_set_exception(runtime_error("x")));
  CHECK(promise.get_future().get() == 1);
}

TEST_CASE("[row 73] a future made by hand is completed in a callback") {
  ferry::promise<std::string> by_hand;
  const auto result = by_hand.get_future();
  ferry::promise<int> source;
  source.get_future().add_done_callback(
      [by_hand = std::move(by_hand)](int value) mutable { by_hand.set_value(std::to_string(value)); });
  source.set_value(12);
  CHECK(result.get() == "12");
}

TEST_CASE("[row 77] twenty chained continuations that each return a future") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  ferry::promise<int> promise;
  auto f = promise.get_future();
  for (int i = 0; i < 20; ++i) f = f.then([](int value) { return ferry::make_ready_future(value + 1); });
  promise.set_value(0);
  CHECK(f.get() == 20);
}

TEST_CASE("[row 78] twenty futures joined under a lock into one") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  ferry::promise<int> joined;
  std::mutex mutex;
  int left = 20;
  int sum = 0;
  for (int i = 0; i < 20; ++i) {
    ferry::make_ready_future(i).add_done_callback([&](int value) {
      bool last = false;
      {
        std::lock_guard lock(mutex);
        sum += value;
        last = --left == 0;
      }
      if (last) joined.set_value(sum);
    });
  }
  CHECK(joined.get_future().get() == 190);
}

TEST_CASE("what a callback returns: futures and tasks are unwrapped, void is a future<void>") {
  const auto f = ferry::make_ready_future(3);
  static_assert(std::is_same_v<decltype(f.then([](int) {})), ferry::future<void>>);
  static_assert(std::is_same_v<decltype(f.then([](int) { return 1.5; })), ferry::future<double>>);
  static_assert(std::is_same_v<decltype(f.then([](ferry::future<int> d) { return d; })), ferry::future<int>>);
  ferry::promise<std::unique_ptr<int>> promise;
  auto child = f.then([&](int) { return promise.get_future(); });
  CHECK_FALSE(child.ready());
  promise.set_value(std::make_unique<int>(8));
  CHECK(*child.get() == 8);
  CHECK(f.then([](int value) -> ferry::task<int> { co_return value * 2; }).get() == 6);
  CHECK(text_of(f.then([](int) { return ferry::make_failed_future<int>(runtime_error("inner")); })) == "inner");
  CHECK(error_of([&] { f.then([](int) { return ferry::future<int>(); }).get(); }) == errc::no_state);
  ferry::make_ready_future().then([] {}).get();
  ferry::make_ready_future().then([](ferry::future<void> done) { done.get(); }).get();
}

TEST_CASE("a callback that is a coroutine keeps its captures and its argument until it is done") {
  ferry::promise<int> gate;
  const auto opened = gate.get_future();
  const std::string captured(100, 'x');
  const auto size = ferry::make_ready_future(std::string(50, 'y'))
                        .then([captured, opened](const std::string& argument) -> ferry::task<std::size_t> {
                          co_await opened;
                          co_return captured.size() + argument.size();
                        });
  const auto again = ferry::make_ready_future(std::string(50, 'y'))
                         .then([opened](const ferry::future<std::string>& argument) -> ferry::task<std::size_t> {
                           co_await opened;
                           co_return argument.value().size();
                         });
  CHECK_FALSE(size.ready());
  gate.set_value(0);
  CHECK(size.get() == 150);
  CHECK(again.get() == 50);
}

TEST_CASE("a null callback is an error") {
  const auto f = ferry::make_ready_future(3);
  CHECK(error_of([&] { (void)f.then(std::function<int(int)>()); }) == errc::invalid_argument);
  CHECK(error_of([&] { f.add_done_callback(std::function<void(int)>()); }) == errc::invalid_argument);
  CHECK(error_of([&] { (void)f.then(static_cast<int (*)(int)>(nullptr)); }) == errc::invalid_argument);
  CHECK(f.then(std::function<int(int)>([](int value) { return value; })).get() == 3);
}

TEST_CASE("what a callback holds is gone when the child is complete") {
  const auto held = std::make_shared<int>(1);
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  for (int i = 0; i < 100; ++i) {
    ferry::make_ready_future(1).then([held](int) { return 2; }).get();
    CHECK(held.use_count() == 1);
  }
}

TEST_CASE("a promise that is dropped breaks its future") {
  ferry::future<int> f;
  {
    ferry::promise<int> promise;
    f = promise.get_future();
  }
  CHECK(error_of([&] { f.get(); }) == errc::promise_broken);
  ferry::promise<int> overwritten;
  f = overwritten.get_future();
  overwritten = ferry::promise<int>();
  CHECK(error_of([&] { f.get(); }) == errc::promise_broken);
}

TEST_CASE("cancel completes with call_cancelled; a value that comes later is dropped in silence, once") {
  ferry::promise<int> promise;
  const auto f = promise.get_future();
  CHECK_FALSE(promise.cancelled());
  f.cancel();
  f.cancel();
  CHECK(promise.cancelled());
  CHECK_THROWS_AS(f.get(), ferry::call_cancelled);
  promise.set_value(1);
  CHECK(error_of([&] { promise.set_value(2); }) == errc::promise_satisfied);
  CHECK_THROWS_AS(f.get(), ferry::call_cancelled);

  const auto done = ferry::make_ready_future(1);
  done.cancel();
  CHECK(done.get() == 1);
}

TEST_CASE("cancelling a child skips its callback and leaves the parent alone") {
  ferry::promise<int> promise;
  const auto parent = promise.get_future();
  bool called = false;
  const auto child = parent.then([&](int) { called = true; });
  child.cancel();
  CHECK_FALSE(parent.ready());
  promise.set_value(1);
  CHECK_FALSE(called);
  CHECK_THROWS_AS(child.get(), ferry::call_cancelled);
}

TEST_CASE("wait_for tells whether the result came, and an error is not thrown by it") {
  ferry::promise<int> promise;
  const auto f = promise.get_future();
  CHECK_FALSE(f.wait_for(1ms));
  CHECK_FALSE(f.wait_for(0ms));  // does not block
  CHECK_FALSE(f.wait_for(-1s));
  CHECK_FALSE(f.wait_until(ferry::deadline(ferry::clock::now() - 1s)));
  promise.set_exception(runtime_error("x"));
  CHECK(f.wait_for(1ms));
  CHECK(f.wait_for(0s));
  CHECK(f.wait_for(ferry::no_timeout));
}

TEST_CASE("waiters on several threads are woken") {
  ferry::promise<int> promise;
  const auto f = promise.get_future();
  std::atomic<int> sum = 0;
  std::vector<std::thread> waiters;
  for (int i = 0; i < 4; ++i)
    waiters.emplace_back([&, i] { sum += i % 2 ? f.get() : (f.wait_for(60s) ? f.get() : 0); });
  promise.set_value(5);
  for (auto& waiter : waiters) waiter.join();
  CHECK(sum == 20);
}

TEST_CASE("a wait tells the blocking observer only if it really blocks") {
  counting_observer observer;
  const observer_scope scope(&observer);
  CHECK(ferry::make_ready_future(1).get() == 1);
  CHECK(observer.before == 0);
  ferry::promise<int> promise;
  CHECK_FALSE(promise.get_future().wait_for(1ms));
  CHECK(observer.before == 1);
  CHECK(observer.after == 1);
  observer.refuse = true;
  CHECK_THROWS_AS(promise.get_future().wait(), ferry::resource_exhausted);
  CHECK(observer.after == 1);
}

TEST_CASE("a state may help its waiter, act on cancellation, and be one object with the future") {
  struct call_state final : ferry::detail::future_state<int> {
    int helped = 0;
    bool told = false;
    void on_cancel() override {
      told = true;
      try_set_error(ferry::make_error(errc::call_cancelled, "told the peer"));
    }
    bool help_wait(ferry::deadline) override {
      ++helped;
      return try_set_value(6);
    }
  };
  auto* call = new call_state;
  const auto f = ferry::future<int>(ferry::detail::ref_ptr<call_state>::adopt(call));
  CHECK(f.get() == 6);
  CHECK(call->helped == 1);
  f.cancel();
  CHECK_FALSE(call->told);

  auto* second = new call_state;
  const auto g = ferry::future<int>(ferry::detail::ref_ptr<call_state>::adopt(second));
  g.cancel();
  CHECK(second->told);
  CHECK(text_of(g) == "call_cancelled: told the peer");
}

TEST_CASE("a value whose construction throws fails the future") {
  struct picky {
    explicit picky(int) { throw std::runtime_error("will not"); }
  };
  ferry::promise<picky> promise;
  promise.set_value(1);
  CHECK_THROWS_WITH(promise.get_future().wait(), "will not");
}

TEST_CASE("make, complete and get allocate once; a continuation once more" *
          doctest::skip(!ferry_test::counts_allocations)) {
  const auto before = ferry_test::allocations_of_this_thread();
  {
    ferry::promise<int> promise;
    auto f = promise.get_future();
    promise.set_value(3);
    CHECK(std::move(f).get() == 3);
  }
  CHECK(ferry_test::allocations_of_this_thread() - before == 1);
  const auto start = ferry_test::allocations_of_this_thread();
  ferry::promise<int> promise;
  const auto child = promise.get_future().then([](int value) { return value; });
  promise.set_value(3);
  CHECK(child.get() == 3);
  CHECK(ferry_test::allocations_of_this_thread() - start == 2);
}

TEST_CASE("callbacks run on the executor of where they were attached, under that context, also when late") {
  const auto threads = std::make_shared<manual_executor>();
  ferry::promise<int> promise;
  std::vector<std::string> trace;
  ferry::future<void> early;
  ferry::future<void> late;
  {
    const entered_context context(threads);
    early = promise.get_future().then([&, context = context.get()](int) {
      CHECK(ferry::thread_context() == context);
      trace.emplace_back("early");
    });
    promise.set_value(1);
    CHECK(trace.empty());
    late = promise.get_future().then([&, context = context.get()](int) {
      CHECK(ferry::thread_context() == context);
      trace.emplace_back("late");
    });
  }
  CHECK(trace.empty());
  CHECK(ferry::thread_context() == nullptr);
  CHECK(threads->run() == 2);
  CHECK(early.ready());
  CHECK(late.ready());
  CHECK(trace == std::vector<std::string>{"early", "late"});
}

TEST_CASE("a long chain without an executor needs no stack, and a callback in it may wait for a later one") {
  ferry::promise<int> promise;
  auto f = promise.get_future();
  for (int i = 0; i < 100'000; ++i) f = f.then([](int value) { return value + 1; });
  promise.set_value(0);
  CHECK(f.get() == 100'000);

  std::function<int(int)> nest = [&nest](int depth) -> int {
    if (depth == 0) return 0;
    return ferry::make_ready_future(depth).then([&nest](int d) { return nest(d - 1) + 1; }).get();
  };
  CHECK(nest(100) == 100);
}

TEST_CASE("stress: completing, attaching, waiting, cancelling and dropping race") {
  const auto threads = std::make_shared<pool_executor>();
  for (int round = 0; round < 500; ++round) {
    ferry::promise<std::string> promise;
    auto f = promise.get_future();
    std::atomic<int> winners = 0;
    std::atomic<int> called = 0;
    std::atomic<bool> go = false;
    std::vector<ferry::future<void>> children[2];
    std::vector<std::thread> racers;
    auto race = [&](auto action) {
      racers.emplace_back([&go, action] {
        while (!go) std::this_thread::yield();
        action();
      });
    };
    for (int i = 0; i < 2; ++i) {
      race([&, i] { winners += promise.try_set_value(std::to_string(i)) ? 1 : 0; });
      race([&, i, f] {
        const entered_context context(threads);
        for (int k = 0; k < 5; ++k) {
          children[i].push_back(f.then([&called](const ferry::future<std::string>& done) {
            if (!done.failed() && done.get().size() == 1) ++called;
            if (done.failed()) ++called;
          }));
        }
      });
    }
    race([f] { CHECK(f.wait_for(60s)); });
    if (round % 2 == 0) race([f] { f.cancel(); });
    f = {};
    go = true;
    for (auto& racer : racers) racer.join();
    for (const auto& group : children) {
      for (const auto& child : group) child.get();
    }
    CHECK(winners <= 1);
    if (round % 2 != 0) CHECK(winners == 1);
    CHECK(called == 10);
  }
}

}  // namespace future_test

#include <ferry/rpc/combinators.hpp>

#include <ferry/rpc/task.hpp>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "test_executor.hpp"

namespace combinators_test {

using ferry::errc;
using ferry_test::entered_context;
using ferry_test::pool_executor;

namespace {
std::exception_ptr runtime_error(const char* text) { return std::make_exception_ptr(std::runtime_error(text)); }
}  // namespace

TEST_CASE("when_all of a vector keeps the order, whatever the order of completion") {
  std::vector<ferry::promise<int>> promises(3);
  std::vector<ferry::future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.get_future());
  const auto all = ferry::when_all(futures);
  promises[2].set_value(2);
  promises[0].set_value(0);
  CHECK_FALSE(all.ready());
  promises[1].set_value(1);
  CHECK(all.get() == std::vector<int>{0, 1, 2});
  CHECK(futures[2].get() == 2);
  CHECK(ferry::when_all(std::vector<ferry::future<int>>()).get().empty());
}

TEST_CASE("when_all of several types gives a tuple") {
  ferry::promise<std::unique_ptr<int>> slow;
  auto all = ferry::when_all(ferry::make_ready_future(1), slow.get_future(), ferry::make_ready_future());
  static_assert(std::is_same_v<decltype(all)::value_type, std::tuple<int, std::unique_ptr<int>, std::monostate>>);
  slow.set_value(std::make_unique<int>(9));
  const auto [number, pointer, nothing] = std::move(all).get();
  CHECK(number == 1);
  CHECK(*pointer == 9);
  static_assert(std::is_same_v<decltype(ferry::when_all(ferry::make_ready_future())), ferry::future<void>>);
  ferry::when_all().get();
  ferry::when_all(std::vector<ferry::future<void>>(2, ferry::make_ready_future())).get();
}

TEST_CASE("when_all fails with the first error, without waiting for the rest") {
  ferry::promise<int> failing;
  ferry::promise<int> pending;
  const auto all = ferry::when_all(pending.get_future(), failing.get_future());
  failing.set_exception(runtime_error("first"));
  CHECK(all.failed());
  CHECK_THROWS_WITH(all.get(), "first");
  pending.set_exception(runtime_error("second"));
  CHECK_THROWS_WITH(all.get(), "first");
}

TEST_CASE("[row 52] wait_all over failing futures throws, and each of them still rethrows") {
  const std::vector<ferry::future<int>> futures(3, ferry::make_failed_future<int>(runtime_error("remote")));
  CHECK_THROWS_WITH_AS(ferry::wait_all(futures), "remote", std::runtime_error);
  for (const auto& f : futures) {
    CHECK_THROWS_WITH(f.get(), "remote");
    CHECK_THROWS_WITH(f.get(), "remote");
  }
  CHECK(ferry::wait_all(ferry::make_ready_future(1), ferry::make_ready_future(2)) == std::tuple(1, 2));
}

TEST_CASE("[row 68] wait_all fails at once although another future is still pending") {
  ferry::promise<void> never_in_time;
  ferry::promise<int> failing;
  std::thread other([&failing] { failing.set_exception(runtime_error("user error")); });
  CHECK_THROWS_WITH(ferry::wait_all(never_in_time.get_future(), failing.get_future()), "user error");
  CHECK_FALSE(never_in_time.get_future().ready());
  other.join();
}

TEST_CASE("when_any gives the first, value or error") {
  ferry::promise<int> a;
  ferry::promise<int> b;
  const auto value = ferry::when_any(a.get_future(), b.get_future());
  const auto error = ferry::when_any(std::vector{b.get_future(), ferry::make_failed_future<int>(runtime_error("x"))});
  CHECK(error.get().index == 1);
  CHECK_THROWS_WITH(error.get().first.get(), "x");
  CHECK_FALSE(value.ready());
  b.set_value(5);
  a.set_value(4);
  CHECK(value.get().index == 1);
  CHECK(value.get().first.get() == 5);
}

TEST_CASE("empty inputs are errors that say which") {
  CHECK_THROWS_WITH_AS(ferry::when_all(ferry::make_ready_future(1), ferry::future<int>()),
                       "no_state: future number 1 of when_all() or when_any() is empty", ferry::error);
  CHECK_THROWS_AS(ferry::when_any(std::vector<ferry::future<int>>()), ferry::error);
}

TEST_CASE("cancelling what was combined leaves the inputs alone") {
  ferry::promise<int> promise;
  const auto all = ferry::when_all(promise.get_future());
  all.cancel();
  CHECK_THROWS_AS(all.get(), ferry::call_cancelled);
  promise.set_value(1);
  CHECK(promise.get_future().get() == 1);
}

TEST_CASE("combined futures are awaited in coroutines") {
  const auto threads = std::make_shared<pool_executor>();
  const entered_context context(threads);
  ferry::promise<int> slow;
  auto body = [](ferry::future<int> f) -> ferry::task<int> {
    const auto [a, b] = co_await ferry::when_all(f, ferry::make_ready_future(2));
    const auto first = co_await ferry::when_any(f, ferry::make_ready_future(3));
    co_return a + b + first.first.get();
  };
  const auto result = ferry::start(body(slow.get_future()));
  slow.set_value(1);
  CHECK(result.get() == 4);
}

TEST_CASE("stress: inputs complete from several threads while they are being combined") {
  for (int round = 0; round < 300; ++round) {
    std::vector<ferry::promise<std::string>> promises(8);
    std::vector<ferry::future<std::string>> futures;
    for (auto& promise : promises) futures.push_back(promise.get_future());
    std::atomic<bool> go = false;
    std::vector<std::thread> completers;
    for (std::size_t t = 0; t < 2; ++t) {
      completers.emplace_back([&, t] {
        while (!go) std::this_thread::yield();
        for (std::size_t i = t; i < promises.size(); i += 2) {
          if (round % 3 == 0 && i == 5) {
            promises[i].set_exception(runtime_error("five"));
          } else {
            promises[i].set_value(std::to_string(i));
          }
        }
      });
    }
    go = true;
    const auto all = ferry::when_all(futures);
    const auto any = ferry::when_any(futures);
    const auto first = any.get();
    CHECK(first.first.ready());
    if (round % 3 == 0) {
      CHECK_THROWS_WITH(all.get(), "five");
    } else {
      CHECK(all.get().at(7) == "7");
    }
    for (auto& completer : completers) completer.join();
  }
}

}  // namespace combinators_test

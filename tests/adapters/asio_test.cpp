#include <ferry/adapters/asio.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <asio/any_io_executor.hpp>
#include <asio/bind_cancellation_slot.hpp>
#include <asio/bind_executor.hpp>
#include <asio/cancellation_signal.hpp>
#include <asio/co_spawn.hpp>
#include <asio/detached.hpp>
#include <asio/execution.hpp>
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <asio/strand.hpp>
#include <asio/this_coro.hpp>
#include <asio/thread_pool.hpp>
#include <asio/use_awaitable.hpp>
#include <asio/use_future.hpp>
#if __has_include(<asio/deferred.hpp>)
  #include <asio/deferred.hpp>
namespace tokens = asio;
#else
  #include <asio/experimental/deferred.hpp>
namespace tokens = asio::experimental;
#endif
#include <asio/experimental/awaitable_operators.hpp>

#include <doctest/doctest.h>
#include <cereal/types/memory.hpp>

#include <ferry/tensor/factories.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace asio_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

int add(int a, int b) { return a + b; }
std::string join(std::string_view first, std::span<const int> numbers) {
  std::string text(first);
  for (const int n : numbers) text += " " + std::to_string(n);
  return text;
}
std::atomic<int> noted{0};
void note(int value) { noted = value; }
std::unique_ptr<int> boxed(std::unique_ptr<int> value) { return std::make_unique<int>(*value + 1); }
ferry::tensor twice(const ferry::tensor& t) {
  ferry::tensor result = ferry::empty_like(t);
  for (std::int64_t i = 0; i != t.numel(); ++i) result.at<float>(i) = 2 * t.at<float>(i);
  return result;
}
int refuse(int value) { throw std::out_of_range("no " + std::to_string(value)); }

ferry_test::gate running;
ferry_test::gate stop_seen;
// Ends when its caller cancels.
ferry::task<int> wait_until_stopped() {
  const auto promise = std::make_shared<ferry::promise<int>>();
  const std::stop_callback callback(ferry::this_call().stop_token(), [&] { promise->try_set_value(1); });
  running.arrive();
  co_await promise->get_future();
  stop_seen.arrive();
  co_return 1;
}
ferry_test::gate hold;
int wait_for_gate(int value) {
  hold.pass();
  return value;
}

// Like asio::inline_executor, which is available since Asio 1.37.
struct calling_executor {
  template <class F>
  void execute(F&& f) const {
    std::forward<F>(f)();
  }
  static constexpr asio::execution::blocking_t query(asio::execution::blocking_t) noexcept {
    return asio::execution::blocking.always;
  }
  friend bool operator==(calling_executor, calling_executor) noexcept { return true; }
  friend bool operator!=(calling_executor, calling_executor) noexcept { return false; }
};

namespace {

// Runs a coroutine on a separate io_context and rethrows its exception.
template <class F>
void run(F&& body) {
  asio::io_context io;
  std::exception_ptr error;
  asio::co_spawn(io, std::forward<F>(body), [&](std::exception_ptr e) { error = e; });
  io.run();
  if (error) std::rethrow_exception(error);
}

}  // namespace

TEST_CASE("use_awaitable: results, view arguments, and errors with their types") {
  captured_log log;
  cluster group(2);
  ferry::worker& self = group[0];
  run([&]() -> asio::awaitable<void> {
    const auto thread = std::this_thread::get_id();
    CHECK(co_await ferry::async_rpc<add>(self, "worker1", 1, 2, asio::use_awaitable) == 3);
    CHECK(std::this_thread::get_id() == thread);
    co_await ferry::async_rpc<note>(self, 1, 7, asio::use_awaitable);
    CHECK(noted == 7);
    // The operation starts after the views have been destroyed.
    auto joined = ferry::async_rpc<join>(self, std::string("worker1"), std::string_view(std::string("n:")),
                                         std::vector{1, 2}, asio::use_awaitable);
    CHECK(co_await std::move(joined) == "n: 1 2");
    std::string text = "m:";
    auto again = ferry::async_rpc<join>(self, self.get_worker_info("worker1"), text.c_str(), std::span<const int>(),
                                        asio::use_awaitable);
    text[0] = 'x';
    CHECK(co_await std::move(again) == "m:");
    CHECK(*co_await ferry::async_rpc<boxed>(self, "worker1", std::make_unique<int>(4), asio::use_awaitable) == 5);
    const ferry::tensor ones = ferry::ones({3});  // g++ 12 rejects a braced list within co_await
    const ferry::tensor t = co_await ferry::async_rpc<twice>(self, "worker1", ones, asio::use_awaitable);
    CHECK(t.at<float>(2) == 2);
    CHECK_THROWS_WITH_AS(co_await ferry::async_rpc<refuse>(self, "worker1", 5, asio::use_awaitable), "no 5",
                         std::out_of_range);
    bool thrown = false;
    try {
      co_await ferry::async_rpc<add>(self, "nobody", 1, 2, asio::use_awaitable);
    } catch (const ferry::error& e) {
      thrown = e.kind() == errc::unknown_worker;
    }
    CHECK(thrown);
  });
}

TEST_CASE("async_rpc without a worker uses the current one, and passes errors to the token") {
  std::future<int> none = ferry::async_rpc<add>("worker0", 1, 2, asio::use_future);
  expect_error(errc::not_initialized, "", [&] { (void)none.get(); });
  cluster group(1);
  CHECK(ferry::async_rpc<add>("worker0", 1, 2, asio::use_future).get() == 3);
}

TEST_CASE("use_future and deferred") {
  captured_log log;
  cluster group(2);
  std::future<int> sum = ferry::async_rpc<add>(group[0], {"worker1", {.timeout = 60s}}, 1, 2, asio::use_future);
  CHECK(sum.get() == 3);
  std::future<void> done = ferry::async_rpc<note>(group[0], "worker1", 9, asio::use_future);
  done.get();
  CHECK(noted == 9);
  CHECK_THROWS_AS(ferry::async_rpc<refuse>(group[0], "worker1", 1, asio::use_future).get(), std::out_of_range);
  auto later = ferry::async_rpc<add>(group[0], "worker1", 4, 5, tokens::deferred);
  CHECK(std::move(later)(asio::use_future).get() == 9);
}

TEST_CASE("a callback runs on its executor, after the initiating function has returned") {
  cluster group(2);
  asio::io_context io;
  const auto strand = asio::make_strand(io);
  int sum = 0;
  bool returned = false;
  ferry::async_rpc<add>(group[0], "worker1", 1, 2,
                        asio::bind_executor(strand, [&](std::exception_ptr error, int value) {
                          CHECK_FALSE(error);
                          CHECK(strand.running_in_this_thread());
                          CHECK(returned);
                          sum = value;
                        }));
  ferry::async_rpc<add>(group[0], "nobody", 1, 2,
                        asio::bind_executor(io, [&](std::exception_ptr error, int) { CHECK(error); }));
  returned = true;
  CHECK(io.run() >= 2);  // returns once both are done
  CHECK(sum == 3);
  // Without an executor: on a thread of the system executor.
  std::promise<std::thread::id> where;
  ferry::async_rpc<note>(group[0], "worker1", 1,
                         [&](std::exception_ptr) { where.set_value(std::this_thread::get_id()); });
  CHECK(where.get_future().get() != std::this_thread::get_id());
}

TEST_CASE("a callback whose executor cannot post runs on a thread of the system executor") {
  cluster group(2);
  std::promise<std::thread::id> where;
  hold.reset();
  ferry::async_rpc<wait_for_gate>(group[0], "worker1", 1,
                                  asio::bind_executor(calling_executor(), [&](std::exception_ptr error, int value) {
                                    CHECK_FALSE(error);
                                    CHECK(value == 1);
                                    where.set_value(std::this_thread::get_id());
                                  }));
  hold.open();
  CHECK(where.get_future().get() != std::this_thread::get_id());
  // A future that is already ready does not run the callback in the initiating function, either.
  const ferry::future<int> ready = ferry::make_ready_future(3);
  std::promise<std::thread::id> again;
  ferry::async_get(ready, asio::bind_executor(calling_executor(), [&](std::exception_ptr, int) {
                     again.set_value(std::this_thread::get_id());
                   }));
  CHECK(again.get_future().get() != std::this_thread::get_id());
}

TEST_CASE("run() does not return while a call is pending") {
  cluster group(2);
  hold.reset();
  asio::io_context io;
  int value = 0;
  ferry::async_rpc<wait_for_gate>(group[0], "worker1", 3,
                                  asio::bind_executor(io, [&](std::exception_ptr, int v) { value = v; }));
  hold.await_arrivals(1);
  CHECK(io.poll() == 0);
  CHECK_FALSE(io.stopped());
  hold.open();
  io.run();
  CHECK(value == 3);
}

TEST_CASE("a cancellation signal cancels the call and notifies the callee") {
  captured_log log;
  cluster group(2);
  running.reset();
  stop_seen.reset();
  asio::io_context io;
  asio::cancellation_signal signal;
  std::exception_ptr error;
  ferry::async_rpc<wait_until_stopped>(
      group[0], "worker1",
      asio::bind_cancellation_slot(signal.slot(),
                                   asio::bind_executor(io, [&](std::exception_ptr e, int) { error = e; })));
  running.await_arrivals(1);
  signal.emit(asio::cancellation_type::total);  // ignored: that there are no side effects cannot be guaranteed
  CHECK(io.poll() == 0);
  signal.emit(asio::cancellation_type::terminal);
  io.run();
  CHECK_THROWS_AS(std::rethrow_exception(error), ferry::call_cancelled);
  stop_seen.await_arrivals(1);
  signal.emit(asio::cancellation_type::all);  // no effect after completion
}

TEST_CASE("awaitable operators cancel the operation that did not complete first") {
  captured_log log;
  cluster group(2);
  running.reset();
  stop_seen.reset();
  run([&]() -> asio::awaitable<void> {
    using namespace asio::experimental::awaitable_operators;
    asio::steady_timer timer(co_await asio::this_coro::executor);
    timer.expires_at(asio::steady_timer::time_point::max());
    const auto first = co_await (ferry::async_rpc<wait_until_stopped>(group[0], "worker1", asio::use_awaitable) ||
                                 ferry::async_rpc<add>(group[0], "worker1", 20, 3, asio::use_awaitable));
    CHECK(first.index() == 1);
    CHECK(std::get<1>(first) == 23);
    const auto second = co_await (timer.async_wait(asio::use_awaitable) ||
                                  ferry::async_rpc<add>(group[0], "worker1", 1, 1, asio::use_awaitable));
    CHECK(second.index() == 1);
  });
  stop_seen.await_arrivals(1);
}

TEST_CASE("an io_context that is destroyed drops its handlers and cancels their calls") {
  captured_log log;
  cluster group(2);
  running.reset();
  stop_seen.reset();
  const auto token = std::make_shared<int>(1);
  {
    asio::io_context io;
    ferry::async_rpc<wait_until_stopped>(
        group[0], "worker1", asio::bind_executor(io, [token](std::exception_ptr, int) { FAIL("was called"); }));
    asio::co_spawn(
        io,
        [&, kept = token]() -> asio::awaitable<void> {
          co_await ferry::async_rpc<wait_until_stopped>(group[0], "worker1", asio::use_awaitable);
          FAIL("was resumed");
        },
        asio::detached);
    io.poll();
    running.await_arrivals(2);
    CHECK(token.use_count() > 1);
  }
  CHECK(token.use_count() == 1);
  stop_seen.await_arrivals(2);
}

TEST_CASE("io_contexts are destroyed while replies arrive") {
  captured_log log;
  cluster group(2);
  std::atomic<int> called{0};
  int expected = 0;
  for (int round = 0; round != 200; ++round) {
    asio::io_context io;
    const int calls = 1 + round % 7;
    for (int i = 0; i != calls; ++i) {
      ferry::async_rpc<add>(group[0], "worker1", i, round,
                            asio::bind_executor(io, [&, i, round](std::exception_ptr error, int sum) {
                              if (!error && sum == i + round) ++called;
                            }));
    }
    if (round % 3 == 0) {
      io.run();
      expected += calls;
      CHECK(called == expected);
    }
  }
  CHECK(called == expected);
}

TEST_CASE("many coroutines on a thread pool") {
  cluster group(2);
  asio::thread_pool pool(3);
  std::atomic<int> sum{0};
  for (int i = 0; i != 50; ++i) {
    asio::co_spawn(
        pool,
        [&, i]() -> asio::awaitable<void> {
          for (int n = 0; n != 4; ++n)
            sum += co_await ferry::async_rpc<add>(group[0], "worker1", i, n, asio::use_awaitable);
        },
        asio::detached);
  }
  pool.join();
  CHECK(sum == 4 * 49 * 50 / 2 + 50 * 6);
}

TEST_CASE("shutting down a worker ends the calls that wait on an io_context") {
  captured_log log;
  asio::io_context io;
  std::exception_ptr error;
  running.reset();
  {
    cluster group(2, {.graceful = false});
    ferry::async_rpc<wait_until_stopped>(group[0], "worker1",
                                         asio::bind_executor(io, [&](std::exception_ptr e, int) { error = e; }));
    running.await_arrivals(1);
  }
  io.run();
  CHECK_THROWS_AS(std::rethrow_exception(error), ferry::error);
}

TEST_CASE("async_get waits for any ferry::future") {
  asio::io_context io;
  ferry::promise<std::string> promise;
  const auto text = promise.get_future();
  std::string seen;
  ferry::async_get(text, asio::bind_executor(io, [&](std::exception_ptr, std::string value) { seen = value; }));
  CHECK(io.poll() == 0);
  promise.set_value("done");
  io.run();
  CHECK(seen == "done");
  CHECK(text.get() == "done");  // still available through other handles
  ferry::async_get(ferry::make_ready_future(), asio::use_future).get();
  expect_error(errc::no_state, "", [] { (void)ferry::async_get(ferry::future<int>(), asio::use_future); });
  // Destroying the context does not cancel a future that has other handles.
  ferry::promise<int> kept;
  {
    asio::io_context other;
    ferry::async_get(kept.get_future(),
                     asio::bind_executor(other, [](std::exception_ptr, int) { FAIL("was called"); }));
  }
  CHECK_FALSE(kept.cancelled());
  kept.set_value(1);
  asio::cancellation_signal signal;
  ferry::promise<int> given_up;
  auto result = ferry::async_get(given_up.get_future(), asio::bind_cancellation_slot(signal.slot(), asio::use_future));
  signal.emit(asio::cancellation_type::terminal);
  CHECK_THROWS_AS(result.get(), ferry::call_cancelled);
}

}  // namespace asio_test

// Calls that their caller gives up.

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace cancellation_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

int plus_one(int value) { return value + 1; }

ferry_test::gate running;
ferry_test::gate told;
// Polls.
int poll_until_stopped() {
  running.arrive();
  const ferry::call_view call = ferry::this_call();
  const auto until = ferry::clock::now() + ferry_test::gate::limit;
  while (!call.stop_requested()) {
    if (ferry::clock::now() > until) throw std::runtime_error("was not stopped");
    std::this_thread::yield();
  }
  told.arrive();
  return 1;
}
// Is called back.
int wait_for_callback() {
  std::mutex mutex;
  std::condition_variable changed;
  bool called = false;
  std::stop_callback callback(ferry::this_call().stop_token(), [&] {
    std::lock_guard lock(mutex);
    called = true;
    changed.notify_all();
  });
  running.arrive();
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, ferry_test::gate::limit, [&] { return called; }))
    throw std::runtime_error("was not stopped");
  told.arrive();
  return 1;
}
// A coroutine that waits for a nested call, which it gives up when it is told.
ferry::task<int> pass_on(std::string to) {
  const auto token = ferry::this_call().stop_token();
  co_return co_await ferry::rpc_async<wait_for_callback>({to, {.stop = token}});
}
ferry::task<int> with_everything(std::string to, int value, std::stop_token token) {
  co_return co_await ferry::rpc_async<plus_one>({to, {.timeout = 60s, .stop = token}}, value);
}
ferry_test::gate promised;
std::shared_ptr<ferry::promise<int>> kept;
ferry::future<int> answer_never() {
  kept = std::make_shared<ferry::promise<int>>();
  auto result = kept->get_future();
  promised.arrive();
  return result;
}

// g++ 12 destroys braced non-trivial temporaries twice there: the address sanitizer must find nothing.
TEST_CASE("a destination in braces with a timeout and a stop token may stand inside co_await") {
  cluster group(2);
  std::stop_source source;
  const std::string name = "worker1, whose name is too long to be kept inside the string itself";
  for (int i = 0; i != 100; ++i) {
    CHECK(ferry::sync_wait(with_everything("worker1", i, source.get_token())) == i + 1);
  }
  expect_error(errc::unknown_worker, name,
               [&] { return ferry::sync_wait(with_everything(name, 1, source.get_token())); });
  source.request_stop();
  expect_error(errc::call_cancelled, "",
               [&] { return ferry::sync_wait(with_everything("worker1", 1, source.get_token())); });
}

TEST_CASE("cancelling a future ends the call at once and tells the callee") {
  captured_log log;
  cluster group(2);
  for (int round = 0; round != 3; ++round) {
    running.reset();
    told.reset();
    const auto polled = group[0].rpc_async<poll_until_stopped>("worker1");
    const auto called = group[0].rpc_async<wait_for_callback>("worker1");
    running.await_arrivals(2);
    CHECK_FALSE(polled.ready());
    polled.cancel();
    called.cancel();
    CHECK(polled.ready());
    CHECK_THROWS_AS((void)polled.get(), ferry::call_cancelled);
    CHECK_THROWS_AS((void)called.get(), ferry::call_cancelled);
    polled.cancel();
    told.await_arrivals(2);
  }
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE("a stop token ends a call, synchronous or not, and tells the callee") {
  captured_log log;
  cluster group(2);
  running.reset();
  told.reset();
  std::stop_source stop;
  const std::stop_token token = stop.get_token();
  const auto later = group[0].rpc_async<wait_for_callback>({"worker1", {.stop = token}});
  std::jthread stopper([&] {
    running.await_arrivals(2);
    stop.request_stop();
  });
  expect_error(errc::call_cancelled, "wait_for_callback", [&] {
    (void)group[0].rpc_sync<wait_for_callback>({"worker1", {.stop = token}});
  });
  CHECK_THROWS_AS((void)later.get(), ferry::call_cancelled);
  told.await_arrivals(2);
}

TEST_CASE("a stop token that is stopped already keeps the call from being sent") {
  cluster group(2);
  std::stop_source stop;
  stop.request_stop();
  const std::stop_token token = stop.get_token();
  expect_error(errc::call_cancelled, "plus_one", [&] {
    (void)group[0].rpc_sync<plus_one>({"worker1", {.stop = token}}, 1);
  });
  expect_error(errc::call_cancelled, "worker1", [&] {
    (void)group[0].rpc_async<plus_one>({"worker1", {.stop = token}}, 1);
  });
}

TEST_CASE("cancelling a call that has ended changes nothing") {
  cluster group(2);
  std::stop_source stop;
  const std::stop_token token = stop.get_token();
  const auto call = group[0].rpc_async<plus_one>({"worker1", {.stop = token}}, 1);
  CHECK(call.get() == 2);
  call.cancel();
  stop.request_stop();
  CHECK(call.get() == 2);
}

TEST_CASE("cancelling races with the reply: each call ends with its value or as cancelled") {
  captured_log log;
  cluster group(2);
  int values = 0;
  for (int i = 0; i != 300; ++i) {
    std::stop_source stop;
    const std::stop_token token = stop.get_token();
    const auto call = group[0].rpc_async<plus_one>({"worker1", {.stop = token}}, i);
    for (int spin = 0; spin != i * 20; ++spin) std::atomic_signal_fence(std::memory_order_seq_cst);
    if (i % 2 == 0) {
      stop.request_stop();
    } else {
      call.cancel();
    }
    int result = 0;
    try {
      result = call.get();
    } catch (const ferry::call_cancelled&) {
      CHECK(call.failed());
      continue;
    }
    CHECK(result == i + 1);
    ++values;
  }
  CHECK(values <= 300);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE("giving a call up travels on through a handler that passes its token on") {
  captured_log log;
  cluster group(3);
  running.reset();
  told.reset();
  const auto call = group[0].rpc_async<pass_on>("worker1", "worker2");
  running.await_arrivals(1);
  call.cancel();
  CHECK_THROWS_AS((void)call.get(), ferry::call_cancelled);
  told.await_arrivals(1);
}

TEST_CASE("a call whose method never answers can be given up") {
  cluster group(2);
  promised.reset();
  const auto call = group[0].rpc_async<answer_never>("worker1");
  promised.await_arrivals(1);
  call.cancel();
  CHECK_THROWS_AS((void)call.get(), ferry::call_cancelled);
  kept->set_value(1);  // comes too late
  kept.reset();
}

}  // namespace cancellation_test

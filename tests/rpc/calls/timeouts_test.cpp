// Deadlines: default, per call, infinite; what the callee learns; how they travel. Timings are lower bounds only.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "noise.hpp"

namespace timeouts_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::cluster_options;

int plus_one(int value) { return value + 1; }
ferry_test::gate door;
int slow(int value) {
  door.pass();
  return value;
}
ferry::tensor slow_tensor(const ferry::tensor& t) {
  door.pass();
  return t;
}

// Waits until the call is stopped, by its deadline or by the caller; the token says so.
ferry_test::gate stopped;
int run_until_stopped() {
  const ferry::call_view call = ferry::this_call();
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  stopped.arrive();
  (void)changed.wait_for(lock, call.stop_token(), ferry_test::gate::limit, [] { return false; });
  if (!call.stop_token().stop_requested()) throw std::runtime_error("was not stopped");
  if (!call.stop_requested()) throw std::runtime_error("the call does not know that it was stopped");
  stopped.arrive();
  return 1;
}

// Microseconds left; -1 without a deadline.
std::int64_t time_left() {
  const ferry::deadline until = ferry::this_call().deadline();
  return until.is_never() ? -1 : std::chrono::duration_cast<std::chrono::microseconds>(until.remaining()).count();
}
std::int64_t time_left_nested(const std::string& to, std::int64_t own_ms) {
  if (own_ms < 0) return ferry::rpc_sync<time_left>({to, {.timeout = ferry::no_timeout}});
  return ferry::rpc_sync<time_left>({to, {.timeout = std::chrono::milliseconds(own_ms)}});
}
// A nested call to a slow worker, without a timeout of its own: it ends when this call's time is over.
ferry_test::gate nested_ended;
int call_slow(const std::string& to) {
  try {
    return ferry::rpc_sync<slow>({to, {.timeout = ferry::no_timeout}}, 1);
  } catch (const ferry::rpc_timeout&) {
    nested_ended.arrive();
    throw;
  }
}
ferry_test::gate late;
std::string call_after_deadline() {
  const ferry::call_view call = ferry::this_call();
  std::mutex mutex;
  std::condition_variable_any changed;
  std::unique_lock lock(mutex);
  (void)changed.wait_until(lock, call.deadline().at(), [] { return false; });
  try {
    (void)ferry::rpc_sync<plus_one>(call.caller(), 1);
    late.arrive();
  } catch (const ferry::rpc_timeout&) {
    late.arrive();
    late.arrive();
  }
  door.pass();  // the caller may be slower to see that its time is over
  return {};
}

namespace {
cluster_options with_timeout(ferry::timeout value) {
  return {.configure = [=](ferry::worker_config& config) {
    config.rpc_timeout = value;
    config.init_timeout = 60s;
  }};
}
struct door_opener {
  door_opener() { door.reset(); }
  ~door_opener() { door.open(); }
};
}  // namespace

TEST_CASE("[row 149] a call with a timeout ends by it and says how long, what, where to and in which phase") {
  cluster group(2);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);  // so that there is a connection
  const door_opener opener;
  const auto before = ferry::clock::now();
  for (const char* part : {"RPC ran for more than set timeout (100 ms)", "slow", "worker_info(id=0, name=worker0)",
                           "worker_info(id=1, name=worker1)", "waiting for the reply"}) {
    expect_timeout(part, [&] { (void)group[0].rpc_sync<slow>({"worker1", {.timeout = 100ms}}, 1); });
    expect_timeout(part, [&] { (void)group[0].rpc_async<slow>({"worker1", {.timeout = 100ms}}, 1).get(); });
  }
  CHECK(ferry::clock::now() - before >= 1s);
  CHECK_THROWS_AS((void)group[0].rpc_sync<slow>({"worker1", {.timeout = 1us}}, 1), ferry::rpc_timeout);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
}

TEST_CASE(
    "[row 148] [row 149] the default timeout is used where a call has none; changing it affects later calls only") {
  cluster group(2, with_timeout(ferry::no_timeout));
  const door_opener opener;
  ferry::worker& self = group[0];
  const auto patient = self.rpc_async<slow>("worker1", 1);
  self.set_rpc_timeout(100ms);
  CHECK_THROWS_AS((void)self.rpc_sync<slow>("worker1", 2), ferry::rpc_timeout);
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 10; ++i) {
    if (auto call = if_in_time([&] { return self.rpc_async<slow>("worker1", i); })) calls.push_back(*call);
  }
  for (auto& each : calls) CHECK_THROWS_AS((void)each.get(), ferry::rpc_timeout);
  // One call's own timeout goes before the default, as does none at all.
  const auto own = self.rpc_async<slow>({"worker1", {.timeout = 60s}}, 3);
  const auto infinite = self.rpc_async<slow>({"worker1", {.timeout = ferry::no_timeout}}, 4);
  const auto zero = self.rpc_async<slow>({"worker1", {.timeout = 0s}}, 5);
  CHECK_THROWS_AS((void)self.rpc_sync<slow>("worker1", 2), ferry::rpc_timeout);
  self.set_rpc_timeout(0s);
  const auto default_again = self.rpc_async<slow>("worker1", 6);
  CHECK_FALSE(patient.ready());
  CHECK_FALSE(own.ready());
  CHECK_FALSE(infinite.ready());
  CHECK_FALSE(zero.ready());
  door.open();
  CHECK(patient.get() == 1);
  CHECK(own.get() == 3);
  CHECK(infinite.get() == 4);
  CHECK(zero.get() == 5);
  CHECK(default_again.get() == 6);
}

TEST_CASE("[row 145] [row 146] the default timeout that a worker was started with is reported back") {
  for (const ferry::timeout value : {ferry::timeout(500ms), ferry::timeout(100s), ferry::timeout(ferry::no_timeout)}) {
    cluster group(1, with_timeout(value));
    CHECK(group[0].rpc_timeout() == value);
    group[0].set_rpc_timeout(7s);
    CHECK(group[0].rpc_timeout() == ferry::timeout(7s));
  }
}

TEST_CASE("negative timeouts are refused") {
  cluster group(1);
  expect_error(errc::invalid_argument, "negative", [&] {
    (void)group[0].rpc_sync<plus_one>({"worker0", {.timeout = -5ms}}, 1);
  });
}

TEST_CASE("a reply that comes after the call has ended is dropped, and never taken for that of a later call") {
  cluster group(2);
  for (int round = 0; round != 5; ++round) {
    door.reset();
    std::vector<ferry::future<int>> given_up;
    for (int i = 0; i != 8; ++i) {
      auto call = if_in_time([&] { return group[0].rpc_async<slow>({"worker1", {.timeout = 100ms}}, 1000 + i); });
      if (call) given_up.push_back(*call);
    }
    auto with_tensor = if_in_time([&] {
      return group[0].rpc_async<slow_tensor>({"worker1", {.timeout = 100ms}}, ferry_test::noise({100, 100}));
    });
    for (auto& each : given_up) CHECK_THROWS_AS((void)each.get(), ferry::rpc_timeout);
    if (with_tensor) CHECK_THROWS_AS((void)with_tensor->get(), ferry::rpc_timeout);
    std::vector<ferry::future<int>> fresh;
    for (int i = 0; i != 8; ++i) fresh.push_back(group[0].rpc_async<plus_one>("worker1", i));
    door.open();
    for (int i = 0; i != 8; ++i) fresh.push_back(group[0].rpc_async<plus_one>("worker1", 8 + i));
    for (int i = 0; i != 16; ++i) CHECK(fresh[static_cast<std::size_t>(i)].get() == i + 1);
  }
}

TEST_CASE("the callee learns that its caller has timed out") {
  captured_log log;
  cluster group(2);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);  // so that there is a connection
  stopped.reset();
  CHECK_THROWS_AS((void)group[0].rpc_sync<run_until_stopped>({"worker1", {.timeout = 200ms}}), ferry::rpc_timeout);
  stopped.await_arrivals(2);
  stopped.reset();
  CHECK_THROWS_AS((void)group[0].rpc_async<run_until_stopped>({"worker1", {.timeout = 200ms}}).get(),
                  ferry::rpc_timeout);
  stopped.await_arrivals(2);
}

TEST_CASE("a handler sees the deadline of its call, and bounds its nested calls by it") {
  cluster group(3, with_timeout(50s));
  ferry::worker& self = group[0];
  const auto between = [](std::int64_t value, std::chrono::microseconds low, std::chrono::microseconds high) {
    CHECK(value > low.count());
    CHECK(value <= high.count());
  };
  between(self.rpc_sync<time_left>("worker1"), 1s, 50s);
  between(self.rpc_sync<time_left>({"worker1", {.timeout = 3000s}}), 1000s, 3000s);
  CHECK(self.rpc_sync<time_left>({"worker1", {.timeout = ferry::no_timeout}}) == -1);
  CHECK(self.rpc_sync<time_left>({"worker1", {.timeout = 0s}}) == -1);
  // Nested: the shorter of its own and what is left of the outer one.
  between(self.rpc_sync<time_left_nested>({"worker1", {.timeout = 40s}}, "worker2", 3'000'000), 1s, 40s);
  between(self.rpc_sync<time_left_nested>({"worker1", {.timeout = 40s}}, "worker2", -1), 1s, 40s);
  between(self.rpc_sync<time_left_nested>({"worker1", {.timeout = 3000s}}, "worker2", 30'000), 1s, 30s);
  CHECK(self.rpc_sync<time_left_nested>({"worker1", {.timeout = ferry::no_timeout}}, "worker2", -1) == -1);
}

TEST_CASE("when a call's time is over, so is that of the calls it made") {
  captured_log log;
  cluster group(3, with_timeout(ferry::no_timeout));
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);  // so that there is a connection
  const door_opener opener;
  nested_ended.reset();
  CHECK_THROWS_AS((void)group[0].rpc_sync<call_slow>({"worker1", {.timeout = 200ms}}, "worker2"), ferry::rpc_timeout);
  nested_ended.await_arrivals(1);
  late.reset();
  CHECK_THROWS_AS((void)group[0].rpc_sync<call_after_deadline>({"worker1", {.timeout = 200ms}}), ferry::rpc_timeout);
  late.await_arrivals(2);
}

TEST_CASE("many timeouts of many lengths at once") {
  cluster group(2);
  const door_opener opener;
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 200; ++i) {
    const auto limit = std::chrono::microseconds(100 + (i * 7919) % 30000);
    auto call = if_in_time([&] { return group[0].rpc_async<slow>({"worker1", {.timeout = limit}}, i); });
    if (call) calls.push_back(*call);
  }
  for (auto& each : calls) CHECK_THROWS_AS((void)each.get(), ferry::rpc_timeout);
}

// As a handler that looks from time to time whether its caller waits.
int run_until_deadline() {
  while (!ferry::this_call().stop_requested()) {
  }
  return 1;
}
int fail_at_deadline() {
  (void)run_until_deadline();
  throw std::runtime_error("the caller has given up");
}

TEST_CASE("what a handler answers because its deadline has passed is late, however soon it answers") {
  const captured_log quiet;
  for (const char* transport : {"inproc", "unix", "shm"}) {
    CAPTURE(transport);
    cluster group(2, {.configure = [transport](ferry::worker_config& config) { config.transports = {transport}; }});
    for (int i = 0; i != 40; ++i) {
      CHECK_THROWS_AS(group[0].rpc_sync<run_until_deadline>({"worker1", {.timeout = 2ms}}), ferry::rpc_timeout);
      CHECK_THROWS_AS(group[0].rpc_async<fail_at_deadline>({"worker1", {.timeout = 2ms}}).get(), ferry::rpc_timeout);
    }
  }
}

}  // namespace timeouts_test

// Calls whose replies no thread waits for at once.

#include <chrono>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "rpc/worker/worker_core.hpp"

namespace unhurried_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::cluster;

int plus_one(int value) { return value + 1; }
ferry_test::gate door;
int behind_door(int value) {
  door.pass();
  return value;
}

namespace {

ferry_test::cluster_options over(const std::string& transport) {
  return {.configure = [=](ferry::worker_config& config) { config.transports = {transport}; }};
}

template <auto F, class... A>
auto unhurried(const ferry::worker& from, const ferry::to& destination, const A&... args) {
  return ferry::detail::call_unhurried<F>(ferry::detail::core_of(from).shared_from_this(), destination, args...);
}

}  // namespace

TEST_CASE("the reply to an unhurried call comes although no thread waits for it") {
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    for (int i = 0; i != 20; ++i) {
      // The caller that waited before has left the connection unwatched; or it is the first call, or a call to itself.
      if (i != 0) CHECK(group[0].rpc_sync<plus_one>("worker1", i) == i + 1);
      const auto result = unhurried<plus_one>(group[0], i % 5 == 4 ? "worker0" : "worker1", i);
      while (!result.ready()) std::this_thread::yield();  // the watchdog of the group bounds it
      CHECK(result.get() == i + 1);
    }
  }
}

TEST_CASE("an unhurried call beside one that a thread waits for, and waited for itself") {
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    for (int i = 0; i != 20; ++i) {
      const auto result = unhurried<plus_one>(group[0], "worker1", i);
      CHECK(group[0].rpc_sync<plus_one>("worker1", i) == i + 1);
      CHECK(result.get() == i + 1);
    }
  }
}

TEST_CASE("an unhurried call ends with its limit, and when it is cancelled") {
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    door.reset();
    const auto late = unhurried<behind_door>(group[0], {"worker1", {.timeout = 20ms}}, 1);
    const auto cancelled = unhurried<behind_door>(group[0], "worker1", 2);
    while (!late.ready()) std::this_thread::yield();
    cancelled.cancel();
    door.open();
    expect_error(errc::rpc_timeout, "", [&] { (void)late.get(); });
    expect_error(errc::call_cancelled, "", [&] { (void)cancelled.get(); });
  }
}

TEST_CASE("an inline callback runs on the thread that completes its future") {
  ferry::promise<int> promise;
  std::thread::id ran_on;
  int seen = 0;
  ferry::detail::add_inline_callback(promise.get_future(), [&](const ferry::future<int>& result) {
    ran_on = std::this_thread::get_id();
    seen = result.value();
  });
  CHECK(seen == 0);
  promise.set_value(7);
  CHECK(seen == 7);
  CHECK(ran_on == std::this_thread::get_id());
}

}  // namespace unhurried_test

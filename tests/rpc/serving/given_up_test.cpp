// Calls whose handlers have returned futures that are not ready, and whose callers wait for them no more.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace given_up_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using rpc_test::process_group;

std::mutex room_mutex;
std::vector<ferry::promise<int>> room;
ferry_test::gate entered;
ferry_test::gate door;
ferry::future<int> wait_in_room(std::string) {
  ferry::promise<int> promise;
  auto result = promise.get_future();
  {
    const std::lock_guard lock(room_mutex);
    room.push_back(std::move(promise));
  }
  entered.arrive();
  return result;
}
ferry::future<int> wait_in_room_later(std::string text) {
  door.pass();
  return wait_in_room(std::move(text));
}
ferry::task<int> wait_in_coroutine(std::string text) {
  co_return co_await wait_in_room(text) + static_cast<int>(text.size());
}
int fetch(const ferry::rref<int>& object) { return object.to_here(); }
int plus_one(int value) { return value + 1; }
std::atomic<int> counted{0};
void count_one() { ++counted; }
ferry_test::gate* place_of_handler = nullptr;
int hold_place() {
  place_of_handler->pass();
  return 1;
}

/// At a child: has it call worker0, and waits for nothing.
void call_back(int milliseconds) {
  (void)ferry::rpc_async<wait_in_room>({"worker0", {.timeout = std::chrono::milliseconds(milliseconds)}},
                                       std::string(1000, 'x'));
}

/// The same, and tells the parent when the call is over.
void call_back_and_tell(int milliseconds) {
  ferry::rpc_async<wait_in_room>({"worker0", {.timeout = std::chrono::milliseconds(milliseconds)}},
                                 std::string(1000, 'x'))
      .then([](const ferry::future<int>&) { ferry_test::tell_parent("over"); });
}

struct ledger {
  ferry::future<int> hold(int) { return wait_in_room("hold"); }
  [[nodiscard]] int look(int value) const { return value; }
};

}  // namespace given_up_test

template <>
struct ferry::object_traits<given_up_test::ledger> {
  static constexpr auto execution = ferry::execution::exclusive;
};

namespace given_up_test {

namespace {

// Afterwards no promise of the test is left.
void complete_room(int value) {
  std::vector<ferry::promise<int>> all;
  {
    const std::lock_guard lock(room_mutex);
    all.swap(room);
  }
  for (auto& each : all) each.set_value(value);
}

struct empty_room {
  empty_room() {
    entered.reset();
    door.reset();
  }
  ~empty_room() {
    door.open();
    complete_room(0);
  }
  empty_room(const empty_room&) = delete;
  empty_room& operator=(const empty_room&) = delete;
};

void await_figure(const ferry::worker& worker, std::string_view figure, std::string_view value) {
  while (worker.debug_info(figure) != value) std::this_thread::yield();  // the watchdog ends what hangs
}
void await_no_calls(const ferry::worker& worker) {
  for (const char* figure : {"agent.server_active_calls", "agent.server_active_async_calls", "agent.served_bytes"})
    await_figure(worker, figure, "0");
  CHECK(worker.served_calls().empty());
}

constexpr const char* transports[]{"tcp", "unix", "shm", "inproc"};

ferry_test::cluster_options over(const std::string& transport) {
  return {.configure = [=](ferry::worker_config& config) { config.transports = {transport}; }};
}

}  // namespace

TEST_CASE("a call whose handler returned a future no longer counts once its caller cancels it or its limit passes") {
  for (const std::string_view transport : {"tcp", "unix", "shm", "inproc", "itself"}) {
    CAPTURE(transport);
    const char* const callee = transport == "itself" ? "worker0" : "worker1";
    cluster group(2, transport == "itself" ? ferry_test::cluster_options() : over(std::string(transport)));
    const empty_room fresh;
    const ferry::worker& there = group[transport == "itself" ? 0 : 1];
    const std::string text(1000, 'x');
    const auto cancelled = group[0].rpc_async<wait_in_room>(callee, text);
    const auto resumed = group[0].rpc_async<wait_in_coroutine>(callee, text);
    entered.await_arrivals(2);
    await_figure(there, "agent.server_active_async_calls", "2");
    CHECK(there.debug_info("agent.server_active_calls") == "2");
    cancelled.cancel();
    resumed.cancel();
    await_no_calls(there);
    expect_error(errc::rpc_timeout, "", [&] {
      (void)group[0].rpc_sync<wait_in_room>({callee, {.timeout = 20ms}}, text);
    });
    await_no_calls(there);
    complete_room(7);  // too late
    CHECK(group[0].rpc_sync<plus_one>(callee, 1) == 2);
    await_no_calls(there);
    CHECK(group[0].debug_info("agent.late_replies") == "0");
  }
}

TEST_CASE("a call that is cancelled before its handler returns a future no longer counts once it has") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, over(transport));
    const empty_room fresh;
    const auto result = group[0].rpc_async<wait_in_room_later>("worker1", "");
    door.await_arrivals(1);
    result.cancel();
    while (group[1].served_calls().empty() || !group[1].served_calls().front().unwanted) std::this_thread::yield();
    door.open();
    await_no_calls(group[1]);
    CHECK(entered.arrived() == 1);
  }
}

TEST_CASE("calls that were given up do not use up the bounds of those that a caller may have served") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, {.configure = [&](ferry::worker_config& config) {
                    config.transports = {transport};
                    config.flow.served_calls_per_peer = 4;
                    config.flow.served_calls_per_worker = 4;
                  }});
    const empty_room fresh;
    for (int i = 0; i != 40; ++i) {
      const auto result = group[0].rpc_async<wait_in_room>("worker1", "");
      entered.await_arrivals(i + 1);
      result.cancel();
      await_no_calls(group[1]);
    }
    CHECK(group[1].debug_info("agent.paused_connections") == "0");
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  }
}

TEST_CASE("a call whose handler returned a future no longer counts once its caller is lost or its connection ends") {
  captured_log log;
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    process_group all(2, {.role = "member that obeys", .transport = transport});
    REQUIRE(all.child(1).read_line() == "joined");
    const empty_room fresh;
    all.self.notify<call_back_and_tell>("worker1", 100'000);
    entered.await_arrivals(1);
    if (transport == std::string_view("tcp")) {
      ferry_test::break_tcp_connections();
      await_no_calls(all.self);
      CHECK(all.child(1).read_line() == "over");  // else it may call over the connection whose end it has not seen yet
      all.self.notify<call_back>("worker1", 100'000);
      entered.await_arrivals(2);
    }
    await_figure(all.self, "agent.server_active_async_calls", "1");
    all.child(1).kill(SIGKILL);
    await_no_calls(all.self);
    complete_room(7);
    await_no_calls(all.self);
    all.self.shutdown(false);
  }
}

TEST_CASE("a call whose handler returned a future ends with its limit although its caller cannot cancel it") {
  captured_log log;
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    process_group all(2,
                      {.role = "member that obeys", .transport = transport, .heartbeat_interval = ferry::no_timeout});
    REQUIRE(all.child(1).read_line() == "joined");
    const empty_room fresh;
    all.self.notify<call_back>("worker1", 100'000);
    for (const int limit : {2100, 1000, 2000}) all.self.notify<call_back>("worker1", limit);
    entered.await_arrivals(4);
    all.child(1).stop();
    await_figure(all.self, "agent.server_active_async_calls", "1");
    await_figure(all.self, "agent.server_active_calls", "1");
    all.child(1).kill(SIGCONT);
    complete_room(7);
    await_no_calls(all.self);
    all.child(1).write_line("shutdown");
    all.leave();
  }
}

TEST_CASE("a call that was given up keeps its turn at the object until the future of its handler is ready") {
  cluster group(2);
  const empty_room fresh;
  const auto object = group[0].remote<ferry::make<ledger>>("worker1");
  const auto held = object.rpc_async<&ledger::hold>(1);
  entered.await_arrivals(1);
  held.cancel();
  await_no_calls(group[1]);
  const auto next = object.rpc_async<&ledger::look>(3);
  while (group[1].served_calls().empty() || group[1].served_calls().front().phase != ferry::served_phase::held)
    std::this_thread::yield();
  CHECK_FALSE(next.ready());
  complete_room(7);
  CHECK(next.get() == 3);
}

TEST_CASE("a call that waits for its turn leaves its place when its caller gives it up") {
  ferry_test::watchdog dog("a call that waits for its turn");
  const empty_room room_of_test;
  cluster group(2);
  const auto object = group[0].remote<ferry::make<ledger>>("worker1");
  const auto held = object.rpc_async<&ledger::hold>(1);
  entered.await_arrivals(1);
  std::vector<ferry::future<int>> waiting;
  for (int i = 0; i != 3; ++i) waiting.push_back(object.rpc_async<&ledger::look>(i));
  const auto waits = [&] {
    const auto served = group[1].served_calls();
    return std::count_if(served.begin(), served.end(),
                         [](const auto& each) { return each.phase == ferry::served_phase::held; });
  };
  while (waits() != 3) std::this_thread::yield();
  waiting[0].cancel();
  waiting[1].cancel();
  while (waits() != 1) std::this_thread::yield();
  complete_room(7);
  CHECK(held.get() == 7);
  CHECK(waiting[2].get() == 2);
  expect_error(errc::call_cancelled, "", [&] { (void)waiting[0].get(); });
  await_no_calls(group[1]);
}

TEST_CASE("a request that waits for a handler's place is not run once its caller has given it up") {
  ferry_test::watchdog dog("requests that wait for a place");
  const empty_room fresh;
  cluster group(2, {.configure = [](ferry::worker_config& own) { own.num_worker_threads = 1; }});
  ferry_test::gate place;
  place_of_handler = &place;
  const int before = counted.load();
  const auto held = group[0].rpc_async<hold_place>("worker1");
  place.await_arrivals(1);
  const auto late = group[0].rpc_async<count_one>({"worker1", {.timeout = 50ms}});
  auto cancelled = group[0].rpc_async<count_one>("worker1");
  cancelled.cancel();
  const auto wanted = group[0].rpc_async<count_one>("worker1");
  while (group[1].served_calls().size() != 4) std::this_thread::yield();  // the cancellation came before the last one
  expect_error(errc::rpc_timeout, "", [&] { late.get(); });
  place.open();
  CHECK(held.get() == 1);
  wanted.get();
  await_no_calls(group[1]);
  CHECK(counted.load() == before + 1);
}

TEST_CASE("an object whose creation returned a future is made although its caller has given that call up") {
  cluster group(2);
  for (const bool throws : {false, true}) {
    CAPTURE(throws);
    const empty_room fresh;
    const auto object = group[0].remote<wait_in_room>({"worker1", {.timeout = 1s}}, "");
    entered.await_arrivals(1);
    const auto value = group[0].rpc_async<fetch>("worker1", object);
    await_figure(group[1], "agent.server_active_async_calls", "0");
    CHECK_FALSE(value.ready());
    if (throws) {
      const std::lock_guard lock(room_mutex);
      room.clear();  // breaks the promise
    } else {
      complete_room(7);
    }
    if (throws) {
      expect_error(errc::promise_broken, "", [&] { (void)value.get(); });
    } else {
      CHECK(value.get() == 7);
    }
  }
}

}  // namespace given_up_test

// Bounds on what is under way: what waits, what is refused, and what a peer that does not read costs.

#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include "allocation_count.hpp"
#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace backpressure_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::cluster_options;
using rpc_test::process_group;

ferry_test::gate door;
std::mutex order_mutex;
std::vector<int> order;
int pass_door(int number) {
  door.pass();
  const std::lock_guard lock(order_mutex);
  order.push_back(number);
  return number;
}
int plus_one(int value) { return value + 1; }
std::size_t length(const std::string& text) { return text.size(); }
std::size_t pass_door_with(const std::string& text) {
  door.pass();
  return text.size();
}
void pass_door_one_way(int) { door.pass(); }
void open_door() { door.open(); }
ferry_test::gate other_door;
int pass_other_door() {
  other_door.pass();
  return 0;
}
ferry_test::gate cancelled;
void wait_for_cancel(int) {
  door.arrive();
  while (!ferry::this_call().stop_requested()) std::this_thread::sleep_for(1ms);  // leaves the others the processor
  cancelled.arrive();
}
int bounce(int depth) { return depth == 0 ? 0 : 1 + ferry::rpc_sync<bounce>(ferry::this_call().caller(), depth - 1); }

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

cluster_options bounded(const ferry::flow_limits& flow, const std::string& transport = {}) {
  return {.configure = [=](ferry::worker_config& config) {
    config.flow = flow;
    config.rpc_timeout = 100s;
    if (!transport.empty()) config.transports = {transport};
  }};
}

// A new door, opened at the latest when the test ends: a handler behind it would keep its worker from shutting down.
struct closed_door {
  closed_door() {
    door.reset();
    order.clear();
  }
  ~closed_door() { door.open(); }
  closed_door(const closed_door&) = delete;
  closed_door& operator=(const closed_door&) = delete;
};

// The sanitizers keep memory of their own beside that of the program.
constexpr bool memory_is_ours = ferry_test::counts_allocations;
std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0;
  std::size_t resident = 0;
  statm >> all >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

constexpr const char* transports[]{"tcp", "unix", "shm", "inproc"};

void await_figure(const ferry::worker& worker, std::string_view figure, std::string_view value) {
  while (worker.debug_info(figure) != value) std::this_thread::yield();  // the watchdog ends what hangs
}

}  // namespace

TEST_CASE("calls beyond the bound wait, are sent in their order, and are refused beyond the bound of the queue") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(3, bounded({.calls_per_peer = 1, .queued_calls_per_peer = 4}, transport));
    ferry::worker& self = group[0];
    CHECK(self.rpc_sync<plus_one>("worker1", 1) == 2);  // calls wait for the connection, too
    const closed_door closed;
    std::vector<ferry::future<int>> results;
    for (int i = 0; i != 5; ++i) results.push_back(self.rpc_async<pass_door>("worker1", i));
    door.await_arrivals(1);
    CHECK(self.debug_info("agent.queued_calls") == "4");
    CHECK(self.debug_info("agent.client_active_calls") == "5");
    const char* const text = "flow.queued_calls_per_peer = 4";
    expect_error(errc::resource_exhausted, text, [&] { (void)self.rpc_async<plus_one>("worker1", 1); });
    expect_error(errc::resource_exhausted, "worker1", [&] { (void)self.rpc_sync<plus_one>("worker1", 1); });
    expect_error(errc::resource_exhausted, text, [&] { self.notify<plus_one>("worker1", 1); });
    CHECK(self.debug_info("agent.client_active_calls") == "5");
    CHECK(self.rpc_sync<plus_one>("worker2", 1) == 2);  // another peer has a queue of its own
    CHECK(door.arrived() == 1);
    door.open();
    for (int i = 0; i != 5; ++i) CHECK(results[static_cast<std::size_t>(i)].get() == i);
    CHECK(order == std::vector{0, 1, 2, 3, 4});
    CHECK(self.rpc_sync<plus_one>("worker1", 1) == 2);
    CHECK(self.debug_info("agent.queued_calls") == "0");
    CHECK(self.debug_info("agent.queued_bytes") == "0");
  }
}

TEST_CASE("a queued call that times out or is cancelled leaves the queue at once, and says that it was queued") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, bounded({.calls_per_peer = 1}, transport));
    ferry::worker& self = group[0];
    const closed_door closed;
    const auto first = self.rpc_async<pass_door>("worker1", 0);
    door.await_arrivals(1);
    auto given_up = self.rpc_async<pass_door>("worker1", 1);
    expect_timeout("while queued", [&] { (void)self.rpc_async<pass_door>({"worker1", {.timeout = 200ms}}, 2).get(); });
    expect_timeout("while queued", [&] { (void)self.rpc_sync<pass_door>({"worker1", {.timeout = 200ms}}, 3); });
    CHECK(self.debug_info("agent.queued_calls") == "1");
    given_up.cancel();
    expect_error(errc::call_cancelled, "while queued", [&] { (void)given_up.get(); });
    std::stop_source stop;
    std::thread stopper;
    const std::stop_token token = stop.get_token();
    expect_error(errc::call_cancelled, "while queued", [&] {
      stopper = std::thread([&] {
        while (self.debug_info("agent.queued_calls") != "1") std::this_thread::yield();
        stop.request_stop();
      });
      (void)self.rpc_sync<pass_door>({"worker1", {.stop = token}}, 4);
    });
    stopper.join();
    CHECK(self.debug_info("agent.queued_calls") == "0");
    door.open();
    CHECK(first.get() == 0);
    CHECK(self.rpc_sync<pass_door>("worker1", 5) == 5);
    CHECK(order == std::vector{0, 5});
  }
}

TEST_CASE("many threads that block in calls share a bound of one") {
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, bounded({.calls_per_peer = 1}, transport));
    std::atomic<int> sum{0};
    std::vector<std::thread> threads;
    for (int i = 0; i != 8; ++i) {
      threads.emplace_back([&, i] {
        for (int j = 0; j != 100; ++j) {
          if (i % 2 == 0) {
            sum += group[0].rpc_sync<plus_one>("worker1", 0);
          } else {
            sum += group[0].rpc_async<plus_one>("worker1", 0).get();
          }
        }
      });
    }
    for (auto& each : threads) each.join();
    CHECK(sum == 800);
    CHECK(group[0].debug_info("agent.queued_calls") == "0");
  }
}

TEST_CASE("the bound of a worker leaves each peer its share") {
  cluster group(3, bounded({.calls_per_worker = 1}));
  ferry::worker& self = group[0];
  const closed_door closed;
  std::vector<ferry::future<int>> results;
  constexpr auto share = static_cast<int>(ferry::flow_limits::fair_calls);
  for (int i = 0; i != share + 4; ++i) results.push_back(self.rpc_async<pass_door>("worker1", i));
  door.await_arrivals(share);
  CHECK(self.debug_info("agent.queued_calls") == "4");
  for (int i = 0; i != 100; ++i) CHECK(self.rpc_sync<plus_one>("worker2", i) == i + 1);
  door.open();
  for (const auto& each : results) each.wait();
  CHECK(door.arrived() == share + 4);
}

TEST_CASE("a call that waits for what other peers use is sent once they do not, though nothing else happens") {
  constexpr auto share = static_cast<int>(ferry::flow_limits::fair_calls);
  cluster_options options = bounded({.calls_per_worker = share + 1});
  options.configure = [bounds = options.configure](ferry::worker_config& config) {
    bounds(config);
    config.num_worker_threads = share + 1;
  };
  cluster group(3, options);
  ferry::worker& self = group[0];
  const closed_door closed;
  other_door.reset();
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != share; ++i) results.push_back(self.rpc_async<pass_door>("worker1", i));
  const auto other = self.rpc_async<pass_other_door>("worker2");
  door.await_arrivals(share);
  other_door.await_arrivals(1);
  const auto signal = self.rpc_async<open_door>("worker1");  // without which none of the others there ends
  CHECK(self.debug_info("agent.queued_calls") == "1");
  other_door.open();
  other.get();
  signal.get();
  for (const auto& each : results) each.wait();
}

TEST_CASE("a process that does not read costs what the bounds allow, and holds up no other peer") {
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    ferry::flow_limits flow;
    flow.bytes_per_peer = flow.queued_bytes_per_peer = 8 * mebibyte;
    process_group all(3, {.transport = transport, .heartbeat_interval = ferry::no_timeout, .flow = flow});
    const std::string large(mebibyte, 'x');
    for (const char* peer : {"worker1", "worker2"}) CHECK(all.self.rpc_sync<length>(peer, large) == mebibyte);
    all.child(1).stop();
    const std::size_t before = resident_bytes();
    std::vector<ferry::future<std::size_t>> results;
    int refused = 0;
    for (int i = 0; i != 100; ++i) {
      try {
        results.push_back(all.self.rpc_async<length>("worker1", large));
      } catch (const ferry::resource_exhausted& e) {
        ++refused;
        CHECK_MESSAGE(std::string(e.what()).find("flow.queued_bytes_per_peer") != std::string::npos, e.what());
      }
    }
    CHECK(refused > 50);
    CHECK(results.size() >= 15);
    const std::size_t now = resident_bytes();
    CHECK_MESSAGE((!memory_is_ours || now < before + 16 * mebibyte + 16 * mebibyte), "grew by ",
                  now - std::min(before, now));
    for (int i = 0; i != 20; ++i) CHECK(all.self.rpc_sync<length>("worker2", large) == mebibyte);
    all.child(1).kill(SIGCONT);
    for (const auto& each : results) CHECK(each.get() == mebibyte);
    all.leave();
  }
}

TEST_CASE("a process that is killed while it does not read takes with it what was written, half written and queued") {
  captured_log log;
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    ferry::flow_limits flow;
    flow.bytes_per_peer = mebibyte;
    process_group all(3, {.transport = transport, .flow = flow});
    const std::string large(mebibyte / 4, 'x');
    CHECK(all.self.rpc_sync<length>("worker1", large) == large.size());
    all.child(1).stop();
    std::vector<ferry::future<std::size_t>> results;
    for (int i = 0; i != 100; ++i)
      results.push_back(all.self.rpc_async<length>({"worker1", {.timeout = ferry::no_timeout}}, large));
    std::vector<std::thread> blocked;
    for (int i = 0; i != 3; ++i) {
      blocked.emplace_back([&] {
        try {
          (void)all.self.rpc_sync<length>({"worker1", {.timeout = ferry::no_timeout}}, large);
        } catch (const ferry::peer_lost&) {  // NOLINT(bugprone-empty-catch): what it shall end with
        }
      });
    }
    await_figure(all.self, "agent.client_active_calls", "103");
    all.child(1).kill(SIGKILL);
    for (auto& each : blocked) each.join();
    for (const auto& each : results) expect_error(errc::peer_lost, "worker1", [&] { (void)each.get(); });
    // The calls end before the connections do.
    for (const char* figure : {"agent.client_active_calls", "agent.queued_bytes", "agent.unwritten_bytes"})
      await_figure(all.self, figure, "0");
    CHECK(all.self.rpc_sync<length>("worker2", large) == large.size());
    all.self.shutdown();
  }
}

TEST_CASE("when a process is killed, the calls that wait for their turn end with the rest") {
  captured_log log;
  ferry::flow_limits flow;
  flow.calls_per_peer = 2;
  process_group all(3, {.flow = flow});
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  all.child(1).stop();
  std::vector<ferry::future<int>> results;
  for (int i = 0; i != 10; ++i)
    results.push_back(all.self.rpc_async<plus_one>({"worker1", {.timeout = ferry::no_timeout}}, i));
  await_figure(all.self, "agent.queued_calls", "8");
  all.child(1).kill(SIGKILL);
  int queued = 0;
  for (const auto& each : results) {
    expect_error(errc::peer_lost, "worker1", [&] {
      try {
        (void)each.get();
      } catch (const ferry::error& e) {
        if (std::string(e.what()).find("while queued") != std::string::npos) ++queued;
        throw;
      }
    });
  }
  CHECK(queued == 8);
  CHECK(all.self.debug_info("agent.queued_calls") == "0");
  CHECK(all.self.rpc_sync<plus_one>("worker2", 1) == 2);
  all.self.shutdown();
}

TEST_CASE("no more is read from a caller than may be served, and what it still sends waits at its own end") {
  for (const char* transport : transports) {
    for (const bool one_way : {false, true}) {
      CAPTURE(transport);
      CAPTURE(one_way);
      cluster group(3, bounded({.served_calls_per_peer = 4}, transport));
      CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
      await_figure(group[1], "agent.server_active_calls", "0");  // a request counts for a moment after its answer
      const closed_door closed;
      std::vector<ferry::future<int>> results;
      for (int i = 0; i != 200; ++i) {
        if (one_way) {
          group[0].notify<pass_door_one_way>("worker1", i);
        } else {
          results.push_back(group[0].rpc_async<pass_door>("worker1", i));
        }
      }
      door.await_arrivals(4);
      await_figure(group[1], "agent.paused_connections", "1");
      CHECK(group[1].debug_info("agent.server_active_calls") == "4");
      CHECK(group[1].rpc_sync<plus_one>("worker0", 1) == 2);  // the other direction, and other callers, go on
      CHECK(group[2].rpc_sync<plus_one>("worker1", 1) == 2);
      CHECK(door.arrived() == 4);
      door.open();
      for (int i = 0; i != static_cast<int>(results.size()); ++i)
        CHECK(results[static_cast<std::size_t>(i)].get() == i);
      door.await_arrivals(200);
      CHECK(door.most_inside() <= 4);
      CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
      await_figure(group[1], "agent.paused_connections", "0");
    }
  }
}

TEST_CASE("requests that are served count with their bytes, for each caller and for all") {
  for (const char* transport : transports) {
    for (const bool all : {false, true}) {
      CAPTURE(transport);
      CAPTURE(all);
      ferry::flow_limits flow;
      (all ? flow.served_bytes_per_worker : flow.served_bytes_per_peer) = 2 * mebibyte;
      cluster group(2, bounded(flow, transport));
      CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
      const closed_door closed;
      const std::string large(mebibyte / 2, 'x');
      std::vector<ferry::future<std::size_t>> results;
      for (int i = 0; i != 20; ++i) results.push_back(group[0].rpc_async<pass_door_with>("worker1", large));
      door.await_arrivals(4);
      await_figure(group[1], "agent.paused_connections", "1");
      CHECK(std::stoul(group[1].debug_info("agent.served_bytes")) >= 2 * mebibyte);
      CHECK(std::stoul(group[1].debug_info("agent.served_bytes")) < 3 * mebibyte);
      door.open();
      for (const auto& each : results) CHECK(each.get() == large.size());
      CHECK(door.most_inside() <= 4);
      await_figure(group[1], "agent.served_bytes", "0");
    }
  }
}

TEST_CASE("answers to a caller that does not read cost what the bounds allow") {
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    rpc_test::mebibytes.reset();
    ferry::flow_limits flow;
    flow.bytes_per_peer = 8 * mebibyte;
    process_group all(
        3,
        {.role = "member that obeys", .transport = transport, .heartbeat_interval = ferry::no_timeout, .flow = flow});
    for (const auto& each : all.children) REQUIRE(each->read_line() == "joined");
    all.child(1).write_line("flood 200");
    rpc_test::mebibytes.await_arrivals(16);
    await_figure(all.self, "agent.server_active_calls", "200");
    all.child(1).stop();
    const std::size_t before = resident_bytes();
    rpc_test::mebibytes.open();
    // Those that had begun before anything was unwritten end; of the rest a handler begins while there is room.
    while (std::stoul(all.self.debug_info("agent.held_handlers")) < 100) std::this_thread::yield();
    await_figure(all.self, "agent.num_idle_threads", "16");
    CHECK(std::stoul(all.self.debug_info("agent.unwritten_replies")) >= 8 * mebibyte);
    CHECK(std::stoul(all.self.debug_info("agent.unwritten_replies")) <= (8 + 16 + 1) * mebibyte);
    const std::size_t now = resident_bytes();
    CHECK_MESSAGE((!memory_is_ours || now < before + (8 + 2 * 16 + 16) * mebibyte), "grew by ",
                  now - std::min(before, now));
    all.child(2).write_line("flood 20");
    CHECK(all.child(2).read_line() == "done");
    all.child(1).kill(SIGCONT);
    CHECK(all.child(1).read_line() == "done");
    CHECK(all.self.debug_info("agent.held_handlers") == "0");
    for (const auto& each : all.children) each->write_line("shutdown");
    all.leave();
  }
}

TEST_CASE("a handler is told that its call was given up although nothing is read from the caller") {
  captured_log log;
  for (const char* transport : {"tcp", "unix", "shm", "inproc"}) {
    CAPTURE(transport);
    door.reset();
    cancelled.reset();
    cluster group(2, {.configure = [&](ferry::worker_config& config) {
                    config.transports = {transport};
                    config.flow.served_calls_per_peer = 8;
                    config.heartbeat_interval = 20ms;
                  }});
    std::vector<ferry::future<void>> running;
    for (int i = 0; i != 8; ++i) running.push_back(group[0].rpc_async<wait_for_cancel>("worker1", i));
    door.await_arrivals(8);
    await_figure(group[1], "agent.paused_connections", "1");
    // Through the heartbeat connection, which may not be open yet: earlier cancellations reach the callee after the pause.
    int given_up = 0;
    for (; given_up != 7 && cancelled.arrived() == 0; ++given_up) {
      running[static_cast<std::size_t>(given_up)].cancel();
      for (const auto until = ferry::clock::now() + 3s; cancelled.arrived() == 0 && ferry::clock::now() < until;)
        std::this_thread::yield();
    }
    CHECK(cancelled.arrived() >= 1);
    CHECK(group[1].debug_info("agent.paused_connections") == "1");
    for (; given_up != 8; ++given_up) running[static_cast<std::size_t>(given_up)].cancel();
    cancelled.await_arrivals(8);
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
    await_figure(group[1], "agent.paused_connections", "0");
  }
}

TEST_CASE("a caller that dies while nothing is read from it leaves nothing behind") {
  captured_log log;
  for (const char* transport : {"tcp", "unix", "shm"}) {
    CAPTURE(transport);
    rpc_test::mebibytes.reset();
    ferry::flow_limits flow;
    flow.served_calls_per_peer = 4;
    process_group all(2, {.role = "member that obeys", .transport = transport, .flow = flow});
    REQUIRE(all.child(1).read_line() == "joined");
    ferry::promise<std::string> lost;
    all.self.on_peer_lost([&](const ferry::worker_info& who, const std::string&) { lost.set_value(who.name()); });
    CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
    all.child(1).write_line("flood 100");
    rpc_test::mebibytes.await_arrivals(4);
    await_figure(all.self, "agent.paused_connections", "1");
    all.child(1).kill(SIGKILL);
    CHECK(lost.get_future().get() == "worker1");
    rpc_test::mebibytes.open();
    for (const char* figure : {"agent.server_active_calls", "agent.paused_connections", "agent.served_bytes"})
      await_figure(all.self, figure, "0");
    all.self.shutdown();
  }
}

TEST_CASE("calls that nest without end are refused by the bound of handlers that wait, and never hang") {
  captured_log log;
  for (const char* transport : transports) {
    CAPTURE(transport);
    cluster group(2, {.configure = [=](ferry::worker_config& config) {
                    config.max_blocked_handlers = 8;
                    config.rpc_timeout = ferry::no_timeout;
                    config.transports = {transport};
                  }});
    expect_error(errc::resource_exhausted, "max_blocked_handlers",
                 [&] { (void)group[0].rpc_sync<bounce>("worker1", 1000); });
    CHECK(group[0].rpc_sync<bounce>("worker1", 8) == 8);
  }
}

}  // namespace backpressure_test

// The death of workers, and what only looks like it.

#include <chrono>
#include <csignal>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "ports.hpp"
#include "process_group.hpp"

namespace failure_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using rpc_test::group_options;
using rpc_test::process_group;

int plus_one(int value) { return value + 1; }
ferry::task<int> wait_for_stop() {
  auto promise = std::make_shared<ferry::promise<int>>();
  const auto result = promise->get_future();
  const auto token = ferry::this_call().stop_token();
  std::stop_callback callback(token, [promise] { promise->set_value(0); });
  ferry_test::tell_parent("running");
  co_return co_await result;
}
void cut() {
  ferry_test::break_tcp_connections();
  ferry_test::tell_parent("cut");
}

namespace {

// The workers that were reported as lost to a worker.
class losses {
 public:
  explicit losses(const ferry::worker& worker) {
    worker.on_peer_lost([state = state_](const ferry::worker_info& who, const std::string& reason) {
      const std::lock_guard lock(state->mutex);
      state->all.emplace_back(who.name(), reason);
      if (state->all.size() == 1) state->first.set_value();
    });
  }
  /// Blocks until there is one.
  std::pair<std::string, std::string> first() {
    first_.wait();
    const std::lock_guard lock(state_->mutex);
    return state_->all.front();
  }
  [[nodiscard]] std::size_t count() const {
    const std::lock_guard lock(state_->mutex);
    return state_->all.size();
  }

 private:
  struct shared {
    std::mutex mutex;
    std::vector<std::pair<std::string, std::string>> all;
    std::promise<void> first;
  };
  std::shared_ptr<shared> state_ = std::make_shared<shared>();
  std::future<void> first_ = state_->first.get_future();
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

constexpr auto short_interval = 100ms;
constexpr auto short_lease = 5s;

group_options obedient(ferry::timeout interval = 500ms, ferry::timeout lease = 100s,
                       const std::string& transport = {}) {
  return {.role = "member that obeys", .transport = transport, .heartbeat_interval = interval, .lease = lease};
}

void all_joined(process_group& all) {
  for (const auto& each : all.children) REQUIRE(each->read_line() == "joined");
}

}  // namespace

TEST_CASE("a killed process is dead to the whole group at once, and the others go on and leave together") {
  captured_log log;
  for (const char* transport : {"", "tcp"}) {
    CAPTURE(transport);
    process_group all(4, obedient(500ms, 100s, transport));
    all_joined(all);
    losses lost(all.self);
    CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
    CHECK(all.self.rpc_sync<plus_one>("worker2", 1) == 2);
    const auto pending = all.self.rpc_async<wait_for_stop>({"worker1", {.timeout = ferry::no_timeout}});
    CHECK(all.child(1).read_line() == "running");
    all.child(1).kill(SIGKILL);
    expect_error(errc::peer_lost, "worker1", [&] { (void)pending.get(); });
    const auto [who, why] = lost.first();
    CHECK(who == "worker1");
    CHECK_MESSAGE(contains(why, "it has terminated"), why);
    expect_error(errc::peer_lost, "is dead", [&] { (void)all.self.rpc_sync<plus_one>("worker1", 1); });
    expect_error(errc::peer_lost, "is dead", [&] { (void)all.self.rpc_async<plus_one>("worker1", 1).get(); });
    expect_error(errc::peer_lost, "name=worker1) was not sent: it is dead",
                 [&] { all.self.notify<plus_one>("worker1", 1); });
    // worker2 has never had to do with it.
    all.child(2).write_line("losses");
    CHECK(all.child(2).read_line() == "worker1");
    CHECK(all.self.debug_info("agent.lost_workers") == "1");
    CHECK(all.self.rpc_sync<plus_one>("worker3", 1) == 2);
    losses heard_later(all.self);
    CHECK(heard_later.first().first == "worker1");
    CHECK(lost.count() == 1);
    for (const int rank : {2, 3}) all.child(rank).write_line("shutdown");
    all.self.shutdown();
    for (const int rank : {2, 3}) {
      CHECK(all.child(rank).read_line() == "done");
      CHECK(all.child(rank).wait() == 0);
    }
  }
}

TEST_CASE("a process that was killed before it was ever called does not delay a graceful shutdown") {
  captured_log log;
  process_group all(3, obedient(500ms, 100s));
  all_joined(all);
  all.child(1).kill(SIGKILL);
  CHECK(all.child(1).wait() == 128 + SIGKILL);
  all.child(2).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(2).read_line() == "done");
}

TEST_CASE("a stopped process is dead after its lease; once it goes on it learns that it was fenced") {
  captured_log log;
  for (const char* transport : {"", "tcp"}) {
    CAPTURE(transport);
    process_group all(3, obedient(short_interval, short_lease, transport));
    all_joined(all);
    losses lost(all.self);
    CHECK(all.self.rpc_sync<plus_one>("worker2", 1) == 2);
    const auto pending = all.self.rpc_async<wait_for_stop>({"worker1", {.timeout = ferry::no_timeout}});
    CHECK(all.child(1).read_line() == "running");
    all.child(1).stop();
    expect_error(errc::peer_lost, "silent", [&] { (void)pending.get(); });
    const auto [who, why] = lost.first();
    CHECK(who == "worker1");
    CHECK_MESSAGE(contains(why, "its lease is 5.0 s"), why);
    all.child(2).write_line("losses");
    CHECK(all.child(2).read_line() == "worker1");
    all.child(1).kill(SIGCONT);
    for (const char* peer : {"worker0", "worker2"}) {
      // Its first call may still find the connection that was closed meanwhile.
      std::string answer;
      do {
        all.child(1).write_line(std::string("call ") + peer);
        answer = all.child(1).read_line();
      } while (answer == "peer_lost");
      CHECK(answer == "fenced");
    }
    all.child(1).write_line("shutdown");
    CHECK(all.child(1).read_line() == "fenced");
    CHECK(all.child(1).wait() == 0);
    all.child(2).write_line("shutdown");
    all.self.shutdown();
    CHECK(all.child(2).read_line() == "done");
    CHECK(lost.count() == 1);
  }
}

TEST_CASE("a process that is stopped for less than its lease is not lost, and neither are the others to it") {
  process_group all(2, obedient(short_interval, 100s));
  all_joined(all);
  losses lost(all.self);
  const auto pending = all.self.rpc_async<plus_one>("worker1", 1);
  CHECK(pending.get() == 2);
  all.child(1).stop();
  const auto later = all.self.rpc_async<plus_one>("worker1", 2);
  CHECK_FALSE(later.wait_for(3 * short_interval));
  all.child(1).kill(SIGCONT);
  CHECK(later.get() == 3);
  all.child(1).write_line("call worker0");
  CHECK(all.child(1).read_line() == "done");
  CHECK(lost.count() == 0);
  all.child(1).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(1).read_line() == "done");
}

TEST_CASE("a lost connection is no death: its calls fail, the next one opens another") {
  captured_log log;
  process_group all(2, obedient(short_interval, 100s, "tcp"));
  all_joined(all);
  losses lost(all.self);
  for (int i = 0; i != 10; ++i) {
    const auto pending = all.self.rpc_async<wait_for_stop>({"worker1", {.timeout = ferry::no_timeout}});
    CHECK(all.child(1).read_line() == "running");
    if (i % 2 == 0) {
      ferry_test::break_tcp_connections();
    } else {
      all.self.notify<cut>("worker1");
      CHECK(all.child(1).read_line() == "cut");  // the next connection is not among those that it cuts
    }
    expect_error(errc::peer_lost, "worker1", [&] { (void)pending.get(); });
    CHECK(all.self.rpc_sync<plus_one>("worker1", i) == i + 1);
  }
  CHECK(lost.count() == 0);
  CHECK(all.self.debug_info("agent.lost_workers") == "0");
  all.child(1).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(1).read_line() == "done");
}

TEST_CASE("a worker that leaves by its own will is not lost") {
  captured_log log;
  process_group all(3, obedient());
  all_joined(all);
  losses lost(all.self);
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  all.child(1).write_line("leave");
  CHECK(all.child(1).read_line() == "done");
  CHECK(all.child(1).wait() == 0);
  for (;;) {
    try {
      (void)all.self.rpc_sync<plus_one>("worker1", 1);
      FAIL("a worker that has left has answered");
    } catch (const ferry::error& e) {
      REQUIRE(e.kind() == errc::peer_lost);
      if (contains(e.what(), "has left the group")) break;
    }
  }
  CHECK(lost.count() == 0);
  all.child(2).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(2).read_line() == "done");
}

TEST_CASE("a worker that waits in a shutdown for longer than a lease declares no other worker dead") {
  process_group all(3, obedient(short_interval, short_lease));
  all_joined(all);
  losses lost(all.self);
  all.child(1).write_line("shutdown");  // waits for the two others, which have nothing to do with it
  for (const auto until = ferry::clock::now() + 2 * short_lease; ferry::clock::now() < until;)
    CHECK(all.self.rpc_sync<plus_one>("worker2", 1) == 2);
  CHECK(lost.count() == 0);
  CHECK(all.self.debug_info("agent.lost_workers") == "0");
  all.child(2).write_line("shutdown");
  all.self.shutdown();
  for (const int rank : {1, 2}) {
    CHECK(all.child(rank).read_line() == "done");
    CHECK(all.child(rank).wait() == 0);
  }
}

TEST_CASE("a worker that left without a goodbye is not reported as dead") {
  captured_log log;
  process_group all(3, obedient());
  all_joined(all);
  losses lost(all.self);
  all.child(1).write_line("leave");
  CHECK(all.child(1).read_line() == "done");
  CHECK(all.child(1).wait() == 0);
  CHECK_THROWS_AS((void)all.self.rpc_sync<plus_one>("worker1", 1), ferry::error);
  all.child(2).write_line("call worker1");
  CHECK(all.child(2).read_line() == "connect_failed");
  all.child(2).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(2).read_line() == "done");
  CHECK(lost.count() == 0);
}

TEST_CASE("an observer that owns its worker keeps nothing alive") {
  std::weak_ptr<int> gone;
  {
    ferry_test::cluster group(1);
    auto kept = std::make_shared<int>(1);
    gone = kept;
    group[0].on_peer_lost([kept](const ferry::worker_info&, const std::string&) {});
  }
  CHECK(gone.expired());
}

TEST_CASE("a worker that was shut down takes no observer and no timeout") {
  ferry_test::cluster group(1);
  group[0].shutdown();
  expect_error(errc::not_initialized, "",
               [&] { group[0].on_peer_lost([](const ferry::worker_info&, const std::string&) {}); });
  expect_error(errc::not_initialized, "", [&] { group[0].on_member_event([](const ferry::member_event&) {}); });
  expect_error(errc::not_initialized, "", [&] { group[0].set_rpc_timeout(1s); });
}

TEST_CASE("without heartbeats silence is no death") {
  process_group all(2, obedient(ferry::no_timeout, 5s));
  all_joined(all);
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  all.child(1).stop();
  expect_error(errc::rpc_timeout, "worker1", [&] {
    (void)all.self.rpc_sync<plus_one>({"worker1", {.timeout = 100ms}}, 1);
  });
  all.child(1).kill(SIGCONT);
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  all.child(1).write_line("shutdown");
  all.self.shutdown();
  CHECK(all.child(1).read_line() == "done");
}

TEST_CASE(
    "without heartbeats a shutdown learns of a death, too, when the first attempts to reach the worker told nothing") {
  auto options = obedient(ferry::no_timeout);
  options.handshake_timeout = 100ms;
  process_group all(2, options);
  all_joined(all);
  all.child(1).stop();
  std::thread killer([&] {
    std::this_thread::sleep_for(1s);  // at least one attempt has ended meanwhile; if none has, this shows less
    all.child(1).kill(SIGKILL);
  });
  all.self.shutdown();
  killer.join();
  CHECK(all.child(1).wait() == 128 + SIGKILL);
}

TEST_CASE("an observer that throws is logged, and the others are told") {
  captured_log log;
  process_group all(2);
  all.self.on_peer_lost([](const ferry::worker_info&, const std::string&) { throw std::runtime_error("no time"); });
  losses lost(all.self);
  // It may call: it is told on a handler thread.
  std::promise<void> called;
  all.self.on_peer_lost([&](const ferry::worker_info& who, const std::string&) {
    expect_error(errc::peer_lost, "is dead", [&] { (void)all.self.rpc_sync<plus_one>(who.name(), 1); });
    CHECK(ferry::rpc_sync<plus_one>("worker0", 1) == 2);
    called.set_value();
  });
  expect_error(errc::invalid_argument, "function", [&] { all.self.on_peer_lost(nullptr); });
  CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
  all.child(1).kill(SIGKILL);
  CHECK(lost.first().first == "worker1");
  called.get_future().wait();
  all.self.shutdown();
  CHECK(log.has("an observer of the group's workers threw", "no time"));
}

TEST_CASE("a start that fails at one worker fails at all of them, promptly") {
  captured_log log;
  const ferry_test::watchdog dog("a start that fails");
  const ferry_test::temporary_directory directory;
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != 3; ++rank) {
    configs.push_back({.name = ferry_test::worker_name(rank),
                       .rank = rank,
                       .world_size = 3,
                       .init_method = "file://" + directory.file("store"),
                       .init_timeout = 100s});
  }
  configs[1].transport.bind = "203.0.113.77";  // an address of another machine
  configs[1].allow_unauthenticated = true;
  configs[1].transports = {"tcp"};
  const auto results = ferry_test::start_workers(configs);
  for (int rank = 0; rank != 3; ++rank) {
    const auto& each = results[static_cast<std::size_t>(rank)];
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      CHECK_MESSAGE((e.kind() == errc::init_failed) == (rank != 1), e.what());
      if (rank != 1) CHECK_MESSAGE(contains(e.what(), "worker1"), e.what());
    }
  }
}

TEST_CASE("members must agree about heartbeats, and leases must be long enough") {
  const ferry_test::temporary_directory directory;
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != 2; ++rank) {
    configs.push_back({.name = ferry_test::worker_name(rank),
                       .rank = rank,
                       .world_size = 2,
                       .init_method = "file://" + directory.file("store"),
                       .lease = rank == 0 ? 5s : 6s,
                       .init_timeout = 100s});
  }
  captured_log log;
  int mismatches = 0;
  for (const auto& each : ferry_test::start_workers(configs)) {
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      if (e.kind() == errc::group_mismatch) {
        ++mismatches;
        CHECK_MESSAGE(contains(e.what(), "lease"), e.what());
      } else {
        CHECK_MESSAGE(e.kind() == errc::init_failed, e.what());
      }
    }
  }
  CHECK(mismatches == 1);
  auto hasty = configs[0];
  hasty.heartbeat_interval = 2s;
  expect_error(errc::invalid_argument, "lease", [&] { (void)ferry::init_rpc(hasty); });
}

}  // namespace failure_test

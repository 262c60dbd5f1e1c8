// Groups whose store stops answering: leaving ends in time.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>

#include <ferry/store/tcp_store.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "ports.hpp"
#include "processes.hpp"
#include "temporary_directory.hpp"

#include "base/unique_fd.hpp"

namespace store_loss_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::worker_name;

int plus_one(int value) { return value + 1; }

namespace {

// Far above what the operations may take, and far below what they took without a bound.
constexpr auto patience = 20s;

// worker0 is a child that serves the store; worker1 and worker2 live here.
class group_of_child {
 public:
  explicit group_of_child(ferry::timeout heartbeat_interval, ferry::timeout lease, ferry::timeout exit_timeout = {}) {
    const std::string meeting = "tcp://127.0.0.1:" + std::to_string(ferry_test::free_port());
    const bool never = heartbeat_interval.is_never();
    const auto text = [&](ferry::timeout value) {
      if (never) return std::string("never");
      return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(value.duration()).count());
    };
    host.emplace(ferry_test::child_options{
        .role = "member", .arguments = {meeting, "0", "3", text(heartbeat_interval), text(lease), ""}});
    std::vector<ferry::worker_config> configs;
    for (const int rank : {1, 2}) {
      configs.push_back({.name = worker_name(rank),
                         .rank = rank,
                         .world_size = 3,
                         .init_method = meeting,
                         .rpc_timeout = 100s,
                         .heartbeat_interval = heartbeat_interval,
                         .lease = lease,
                         .exit_timeout = exit_timeout});
    }
    for (auto& each : ferry_test::start_workers(configs)) {
      if (each.error) std::rethrow_exception(each.error);
      here.push_back(std::move(each.worker));
    }
  }

  ferry_test::watchdog watchdog{"a group whose store stops"};
  std::optional<ferry_test::child_process> host;
  std::vector<ferry::worker> here;
};

template <class Action>
void within(std::chrono::nanoseconds limit, Action action) {
  const auto begun = ferry::clock::now();
  action();
  CHECK(ferry::clock::now() - begun < limit);
}

}  // namespace

TEST_CASE("a graceful shutdown ends at its deadline though the process that serves the store is stopped") {
  const captured_log quiet;
  group_of_child group(ferry::no_timeout, ferry::no_timeout);
  group.host->stop();
  for (ferry::worker& each : group.here)
    within(patience, [&] { expect_error(errc::shutdown_timeout, "tcp store", [&] { each.shutdown(true, 300ms); }); });
}

TEST_CASE("a graceful shutdown gives up a store whose worker is lost and that does not answer") {
  const captured_log quiet;
  group_of_child group(100ms, 2s);
  for (const ferry::worker& each : group.here) CHECK(each.rpc_sync<plus_one>("worker2", 1) == 2);
  group.host->stop();
  std::thread other([&] { CHECK_THROWS_AS(group.here[1].shutdown(true), ferry::error); });
  within(patience, [&] { expect_error(errc::store_unreachable, "worker0", [&] { group.here[0].shutdown(true); }); });
  other.join();
}

TEST_CASE("a shutdown that is not graceful interrupts one that waits for a stopped store") {
  const captured_log quiet;
  group_of_child group(ferry::no_timeout, ferry::no_timeout);
  group.host->stop();
  ferry::worker& self = group.here[0];
  std::thread graceful([&] {
    try {
      self.shutdown(true);
    } catch (const ferry::error& e) {
      CHECK(e.kind() == errc::shutting_down);
    }
  });
  // Whichever comes first.
  within(patience, [&] { self.shutdown(false); });
  graceful.join();
  group.here[1].shutdown(false);
}

TEST_CASE("a worker that is destroyed takes no longer than its exit timeout though its store is stopped") {
  const captured_log quiet;
  group_of_child group(ferry::no_timeout, ferry::no_timeout, 300ms);
  group.host->stop();
  within(patience, [&] { group.here.clear(); });
}

TEST_CASE("a graceful shutdown ends at its deadline though another process has locked the file store") {
  const captured_log quiet;
  const ferry_test::temporary_directory directory;
  const std::string path = directory.file("store");
  std::vector<ferry::worker_config> configs;
  for (const int rank : {0, 1})
    configs.push_back({.name = worker_name(rank), .rank = rank, .world_size = 2, .init_method = "file://" + path});
  auto workers = ferry_test::start_workers(configs);
  const ferry::detail::unique_fd file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(file.get(), LOCK_EX) == 0);
  for (auto& each : workers) {
    REQUIRE(!each.error);
    within(patience,
           [&] { expect_error(errc::shutdown_timeout, "file store", [&] { each.worker.shutdown(true, 300ms); }); });
  }
}

TEST_CASE("a member whose connection was lost is called although the store does not answer") {
  const captured_log quiet;
  const ferry_test::temporary_directory directory;
  const ferry_test::watchdog watchdog("a member without a connection");
  const std::string file = directory.file("store");
  const auto join = [&](const char* name) {
    ferry::worker_config config{.name = name,
                                .rank = ferry::any_rank,
                                .world_size = ferry::dynamic_world,
                                .init_method = "file://" + file,
                                .heartbeat_interval = 1s,
                                .lease = 100s,
                                .transports = {"tcp"}};
    config.transport.bind = "127.0.0.1";
    return ferry::init_rpc(config);
  };
  const ferry::worker self = join("self");
  const ferry::worker other = join("other");
  CHECK(self.rpc_sync<plus_one>("other", 1) == 2);
  const ferry::detail::unique_fd locked(::open(file.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::flock(locked.get(), LOCK_EX) == 0);
  ferry_test::break_connections();
  bool reached = false;
  for (int i = 0; i != 20 && !reached; ++i) {
    try {
      reached = self.rpc_sync<plus_one>(ferry::to("other", {.timeout = 800ms}), 1) == 2;
    } catch (const ferry::error& problem) {
      INFO(std::string(problem.message()));
      CHECK((problem.kind() == errc::peer_lost || problem.kind() == errc::rpc_timeout));
    }
  }
  CHECK(reached);
  CHECK(::flock(locked.get(), LOCK_UN) == 0);
}

TEST_CASE("the store of a worker that waits in its shutdown takes connections until all have come") {
  const std::uint16_t port = ferry_test::free_port();
  std::vector<ferry::worker_config> configs;
  for (const int rank : {0, 1}) {
    configs.push_back({.name = worker_name(rank),
                       .rank = rank,
                       .world_size = 2,
                       .init_method = "tcp://127.0.0.1:" + std::to_string(port)});
  }
  auto both = ferry_test::start_workers(configs);
  for (const auto& each : both) REQUIRE_FALSE(each.error);
  const ferry_test::watchdog limit("a worker that waits for another one in its shutdown");
  std::thread first([&] { both[0].worker.shutdown(); });
  {
    ferry::tcp_store before({.host = "127.0.0.1", .port = port});
    const auto waits = [&] {
      for (const auto& each : before.list("")) {
        if (each.key.ends_with("round/0/0")) return true;
      }
      return false;
    };
    while (!waits()) std::this_thread::yield();
    ferry::tcp_store later({.host = "127.0.0.1", .port = port, .limit = 5s});
    CHECK_FALSE(later.list("").empty());
  }
  both[1].worker.shutdown();
  first.join();
}

}  // namespace store_loss_test

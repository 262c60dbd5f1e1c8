// Creations whose request waits for the next one of its thread, once their objects have been used at once for a while:
// what happens when nothing follows, and when either call, or a worker, fails.

#include <atomic>
#include <chrono>
#include <csignal>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include <doctest/doctest.h>
#include <unistd.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace reference_pairs_test {

using ferry::errc;
using ferry::rref;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
int behind_door(int value) {
  door.pass();
  return value;
}
int fails_always(int) { throw std::domain_error("it never works"); }
std::atomic<int> pinged{0};
void ping(const tracked&) { ++pinged; }
// Made and used by a handler, which then returns without sending more.
rref<tracked> kept_by_handler;
void make_in_handler(const std::string& where) {
  for (int i = 0; i != 50; ++i) (void)ferry::remote<ferry::make<tracked>>(where, i).rpc_sync<&tracked::value>();
  kept_by_handler = ferry::remote<ferry::make<tracked>>(where, 1);
}

struct closed_door {
  closed_door() { door.reset(); }
  ~closed_door() { door.open(); }
  closed_door(const closed_door&) = delete;
  closed_door& operator=(const closed_door&) = delete;
};

// Two or more workers of this process with a socket between them.
struct pair_group : faulty_cluster {
  explicit pair_group(int size = 2, const std::string& transport = "unix")
      : faulty_cluster(size, [&](ferry::worker_config& config) { config.transports = {transport}; }) {}
};

// The creations of this thread are used at once, often enough for the next one to wait for its use.
void make_and_use(const ferry::worker& self, const std::string& owner = "worker1") {
  for (int i = 0; i != 50; ++i) CHECK(self.remote<add>(owner, i, 1).to_here() == i + 1);
}

// Runs in a child, which ends.
void make_and_die(bool use) {
  for (int i = 0; i != 50; ++i) (void)ferry::remote<add>("worker0", i, 1).to_here();
  const auto last = ferry::remote<ferry::make<tracked>>("worker0", 1);
  if (use) (void)last.rpc_sync<&tracked::value>();
  ::_exit(7);
}

void await_none(const ferry::worker& worker) {
  for (const char* figure : {"num_owner_rrefs", "num_forks", "num_expected_rrefs", "num_users", "num_pending_users",
                             "num_pending_children", "num_pending_futures"}) {
    await_figure(worker, figure, "0");
  }
}

TEST_CASE("objects are made and fetched in pairs") {
  for (const char* transport : {"unix", "tcp", "shm"}) {
    CAPTURE(transport);
    pair_group group(2, transport);
    for (int i = 0; i != 300; ++i) {
      CHECK(group[0].remote<add>("worker1", i, 1).to_here() == i + 1);
      CHECK(group[0].remote<ferry::make<tracked>>("worker1", i).rpc_sync<&tracked::value>() == i);
      CHECK(group[0].remote<ferry::make<tracked>>("worker1", i).rpc_async<&tracked::value>().get() == i);
    }
    await_no_references(group);
  }
}

TEST_CASE("an object that is not used at once is made, whatever its thread does") {
  pair_group group(3);
  rref<tracked> kept;
  const auto make = [&] {
    make_and_use(group[0]);
    kept = group[0].remote<ferry::make<tracked>>("worker1", 1);
  };
  const auto is_made = [&] {
    await([] { return tracked::alive() == 1; });
    await([&] { return kept.confirmed_by_owner(); });
    kept = {};
    await([] { return tracked::alive() == 0; });
  };
  SUBCASE("nothing in ferry") {
    make();
    await([] { return tracked::alive() == 1; });
    is_made();
  }
  SUBCASE("it waits for it") {
    make();
    kept.created().get();
    is_made();
  }
  SUBCASE("it attaches a continuation") {
    std::atomic<bool> told{false};
    make();
    kept.created().then([&] { told = true; });
    await([&] { return told.load(); });
    is_made();
  }
  SUBCASE("it waits for another worker") {
    make();
    CHECK(group[0].rpc_sync<add>("worker2", 1, 2) == 3);
    is_made();
  }
  SUBCASE("it gives another worker the reference") {
    make();
    CHECK(group[0].rpc_sync<touch>("worker2", kept) == 1);
    is_made();
  }
  SUBCASE("it sends it a one-way call") {
    pinged = 0;
    make();
    kept.notify<ping>();
    await([] { return pinged.load() == 1; });
    is_made();
  }
  SUBCASE("it ends") {
    std::thread(make).join();
    is_made();
  }
  SUBCASE("it drops the reference") {
    make();
    kept = {};
  }
  SUBCASE("it is a handler's") {
    group[0].rpc_sync<make_in_handler>("worker2", std::string("worker1"));
    kept = std::exchange(kept_by_handler, {});
    is_made();
  }
  kept = {};
  await_no_references(group);
}

TEST_CASE("a shutdown leaves no object behind whose creation was held back") {
  pair_group group;
  make_and_use(group[0]);
  (void)group[0].remote<ferry::make<tracked>>("worker1", 1);
  for (const auto& error : shut_down(group, 30s)) CHECK_FALSE(error);
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("a creation that throws while its fetch is under way fails both, and is confirmed") {
  pair_group group;
  make_and_use(group[0]);
  for (int i = 0; i != 10; ++i) {
    const auto ref = group[0].remote<fails_always>("worker1", 1);
    CHECK_THROWS_WITH_AS((void)ref.to_here(), doctest::Contains("it never works"), std::domain_error);
    ref.created().get();
    CHECK(ref.confirmed_by_owner());
  }
  await_no_references(group);
}

TEST_CASE("a fetch that times out while its object is being made fails alone") {
  pair_group group;
  {
    const closed_door closed;
    make_and_use(group[0]);
    const auto ref = group[0].remote<behind_door>("worker1", 7);
    expect_error(errc::rpc_timeout, "", [&] { (void)ref.to_here(20ms); });
    CHECK_FALSE(ref.confirmed_by_owner());
    door.open();
    CHECK(ref.to_here() == 7);
    ref.created().get();
  }
  await_no_references(group);
}

TEST_CASE("a creation that times out while its fetch is under way fails both") {
  pair_group group;
  {
    const closed_door closed;
    make_and_use(group[0]);
    const auto ref = group[0].remote<behind_door>({"worker1", {.timeout = 300ms}}, 7);
    const auto fetched = ref.to_here_async({.timeout = 10s});
    expect_error(errc::rpc_timeout, "creation", [&] { ref.created().get(); });
    door.open();
    CHECK(fetched.get() == 7);  // it was made, although too late for its creator
    expect_error(errc::rpc_timeout, "creation", [&] { (void)ref.to_here(); });
  }
  await_no_references(group);
}

TEST_CASE("a creation that is cancelled before anything follows it is cancelled") {
  pair_group group;
  {
    const closed_door closed;
    make_and_use(group[0]);
    std::stop_source source;
    const auto token = source.get_token();
    const auto ref = group[0].remote<behind_door>({"worker1", {.stop = token}}, 7);
    source.request_stop();
    expect_error(errc::call_cancelled, "creation", [&] { ref.created().get(); });
    expect_error(errc::call_cancelled, "creation", [&] { (void)ref.to_here(); });
  }
  await_no_references(group);
}

TEST_CASE("the fetch of a pair is lost, or its creation") {
  pair_group group;
  make_and_use(group[0]);
  {
    group.faults(0).add({.action = ferry::fault_action::drop,
                         .kinds = ferry::message_kinds::request,
                         .method = "*value_of*",
                         .limit = 1});
    const auto ref = group[0].remote<add>("worker1", 1, 2);
    expect_error(errc::rpc_timeout, "", [&] { (void)ref.to_here(50ms); });
    ref.created().get();
    CHECK(ref.to_here() == 3);
  }
  group.faults(0).clear();
  make_and_use(group[0]);
  {
    group.faults(0).add({.action = ferry::fault_action::drop,
                         .kinds = ferry::message_kinds::request,
                         .method = "*references_test::add*",
                         .limit = 1});
    const auto ref = group[0].remote<add>({"worker1", {.timeout = 300ms}}, 1, 2);
    CHECK_THROWS_AS((void)ref.to_here({.timeout = 10s}), ferry::error);
    expect_error(errc::rpc_timeout, "creation", [&] { ref.created().get(); });
  }
  await_no_references(group);
}

TEST_CASE("the owner dies between a creation and its fetch") {
  for (const char* transport : {"unix", "shm"}) {
    CAPTURE(transport);
    rpc_test::process_group all(2, {.role = "member that obeys", .transport = transport, .heartbeat_interval = 100ms});
    REQUIRE(all.child(1).read_line() == "joined");
    make_and_use(all.self);
    all.child(1).stop();
    const auto ref = all.self.remote<add>("worker1", 1, 2);
    const auto fetched = ref.to_here_async({.timeout = 60s});
    const auto alone = all.self.remote<add>("worker1", 1, 2);
    all.child(1).kill(SIGKILL);
    CHECK(all.child(1).wait() == 128 + SIGKILL);
    expect_error(errc::peer_lost, "", [&] { (void)fetched.get(); });
    expect_error(errc::peer_lost, "", [&] { ref.created().get(); });
    expect_error(errc::peer_lost, "", [&] { alone.created().get(); });
    await_none(all.self);
    all.self.shutdown(false);
  }
}

TEST_CASE("the caller dies with a creation that it holds back, or right behind a pair") {
  for (const bool use : {false, true}) {
    CAPTURE(use);
    rpc_test::process_group all(2, {.role = "member that obeys", .transport = "unix", .heartbeat_interval = 100ms});
    REQUIRE(all.child(1).read_line() == "joined");
    all.self.notify<make_and_die>("worker1", use);
    CHECK(all.child(1).wait() == 7);
    await([] { return tracked::alive() == 0; });
    await_none(all.self);
    all.self.shutdown(false);
  }
}

}  // namespace reference_pairs_test

// References while messages are lost, late, duplicated and out of order.

#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/fault_proxy.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "ports.hpp"
#include "references.hpp"

namespace reference_messages_test {

using ferry::errc;
using ferry::fault_action;
using ferry::fault_rule;
using ferry::message_kinds;
using ferry::rref;
using namespace references_test;
using namespace std::chrono_literals;

rref<tracked> make_tracked(const std::string& where, int value) {
  return ferry::remote<ferry::make<tracked>>(where, value);
}
int add_up(int a, int b) { return a + b; }
int touch_at(const std::string& where, const rref<tracked>& ref) {
  return ferry::rpc_sync<touch>(where, ref) + ref.rpc_sync<&tracked::value>();
}
rref<tracked> back(const rref<tracked>& ref) { return ref; }

std::pair<rref<tracked>, std::string> make_beside(int value, std::size_t bytes) {
  return {ferry::remote<ferry::make<tracked>>(ferry::get_worker_info().id(), value), std::string(bytes, 'x')};
}
std::mutex kept_mutex;
rref<int> kept;
void keep_beside(const rref<int>& ref, const std::string&) {
  const std::lock_guard lock(kept_mutex);
  kept = ref;
}
bool has_kept() {
  const std::lock_guard lock(kept_mutex);
  return static_cast<bool>(kept);
}
int kept_value() {
  const std::lock_guard lock(kept_mutex);
  return kept.to_here();
}
void drop_kept() {
  const std::lock_guard lock(kept_mutex);
  kept = {};
}

void add_to_all(faulty_cluster& group, const fault_rule& rule) {
  for (int rank = 0; rank != group.size(); ++rank) group.faults(rank).add(rule);
}

// Every worker shares objects of every worker with every worker.
void share(faulty_cluster& group, int rounds) {
  for (int round = 0; round != rounds; ++round) {
    for (int from = 0; from != group.size(); ++from) {
      const std::string owner = "worker" + std::to_string((from + 1) % group.size());
      const std::string third = "worker" + std::to_string((from + 2) % group.size());
      const auto a = group[from].remote<ferry::make<tracked>>(owner, 1);
      CHECK(group[from].rpc_sync<touch>(third, a) == 1);
      CHECK(group[from].rpc_sync<touch_at>(third, owner, a) == 2);
      CHECK(group[from].rpc_async<touch_at>(owner, third, a).get() == 2);
      const auto b = group[from].rpc_sync<make_tracked>(owner, third, 5);
      CHECK(group[from].rpc_sync<back>(owner, b) == b);
      CHECK(b.rpc_sync<&tracked::value>() == 5);
      CHECK(group[from].remote<touch>(third, a).to_here() == 1);
      group[from].notify<touch>(third, a);
    }
  }
}

void check_no_references(faulty_cluster& group) {
  await_no_references(group);
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("[row 160] each reference control fails three times: all references still end") {
  faulty_cluster group(3);
  add_to_all(
      group,
      {.action = fault_action::fail, .kinds = message_kinds::request, .method = "ferry/references", .of_each = 3});
  share(group, 1);
  check_no_references(group);
  std::uint64_t failed = 0;
  for (int rank = 0; rank != 3; ++rank) failed += group.faults(rank).counters().failed;
  CHECK(failed >= 9);  // each worker had controls to send
}

TEST_CASE("duplicated messages count once") {
  faulty_cluster group(3);
  add_to_all(group, {.action = fault_action::duplicate});
  share(group, 3);
  check_no_references(group);
}

TEST_CASE("messages that are late and out of order") {
  faulty_cluster group(3);
  add_to_all(group, {.action = fault_action::reorder, .delay = 5ms, .behind = 2, .probability = 0.3});
  add_to_all(group, {.action = fault_action::delay, .delay = 3ms, .probability = 0.3});
  add_to_all(group, {.action = fault_action::duplicate, .probability = 0.3});
  share(group, 5);
  check_no_references(group);
}

TEST_CASE("[row 164] a creation whose message is lost, at a peer and at oneself, fails, and so does every use") {
  faulty_cluster group(2);
  group.faults(0).add({.action = fault_action::drop, .kinds = message_kinds::request, .method = "*add_up"});
  {
    std::vector<rref<int>> all;
    for (const char* where : {"worker1", "worker0"}) {
      CAPTURE(where);
      all.push_back(group[0].remote<add_up>({where, {.timeout = 50ms}}, 1, 2));
      const rref<int>& lost = all.back();
      auto waiting = if_in_time([&] { return lost.rpc_async<plus>({.timeout = 300ms}, 1); }, "creation");
      expect_error(errc::rpc_timeout, "creation", [&] { lost.created().get(); });
      expect_error(errc::rpc_timeout, "creation", [&] { (void)lost.to_here(); });
      expect_error(errc::rpc_timeout, "creation", [&] { (void)lost.rpc_sync<plus>(1); });
      expect_error(errc::rpc_timeout, "creation", [&] { (void)group[0].rpc_sync<fetch>("worker1", lost); });
      if (lost.is_owner()) expect_error(errc::rpc_timeout, "creation", [&] { (void)lost.local_value(); });
      // A call that waited for the object gets reference_deleted or runs into its own timeout.
      if (waiting) CHECK_THROWS_AS((void)waiting->get(), ferry::error);
    }
  }
  await_no_references(group);
  group.faults(0).clear();
  CHECK(group[0].remote<add_up>("worker1", 1, 2).to_here() == 3);
}

TEST_CASE("the type of an object is requested again after a failure") {
  faulty_cluster group(2);
  group.faults(0).add(
      {.action = fault_action::fail, .kinds = message_kinds::request, .method = "ferry/type_of_object", .limit = 1});
  const ferry::any_rref some = group[0].remote<add_up>("worker1", 1, 2);
  some.created().get();
  CHECK_THROWS_AS((void)some.type().get(), ferry::error);
  CHECK(some.type().get() == ferry::type_name<int>());
}

TEST_CASE("a creation whose answer is lost: the object is destroyed with the reference") {
  faulty_cluster group(2);
  CHECK(group[0].rpc_sync<add_up>("worker1", 1, 2) == 3);  // so that there is a connection
  for (int rank = 0; rank != 2; ++rank) {
    group.faults(rank).add(
        {.action = fault_action::drop, .kinds = message_kinds::reply, .method = "*construct<*tracked*", .limit = 1});
  }
  {
    const auto t = group[0].remote<ferry::make<tracked>>({"worker1", {.timeout = 300ms}}, 1);
    expect_error(errc::rpc_timeout, "creation", [&] { t.created().get(); });
    await([] { return tracked::alive() == 1; });
  }
  check_no_references(group);
}

TEST_CASE("references in lost messages are released") {
  faulty_cluster group(3);
  SUBCASE("requests") {
    group.faults(0).add({.action = fault_action::drop, .kinds = message_kinds::request, .method = "*touch"});
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    for (const int to : {0, 1, 2}) {
      expect_error(errc::rpc_timeout, "", [&] { (void)group[0].rpc_sync<touch>({to, {.timeout = 20ms}}, t); });
    }
    CHECK(t.rpc_sync<&tracked::value>() == 1);
  }
  SUBCASE("one-way calls") {
    group.faults(0).add({.action = fault_action::drop, .kinds = message_kinds::one_way, .method = "*touch"});
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    for (const int to : {0, 1, 2}) group[0].notify<touch>(to, t);
    CHECK(t.rpc_sync<&tracked::value>() == 1);
  }
  SUBCASE("replies") {
    for (int rank = 0; rank != 3; ++rank) {
      group.faults(rank).add({.action = fault_action::drop, .kinds = message_kinds::reply, .method = "*make_tracked"});
    }
    for (const char* where : {"worker1", "worker2"}) {
      expect_error(errc::rpc_timeout, "", [&] {
        (void)group[0].rpc_sync<make_tracked>({where, {.timeout = 50ms}}, "worker2", 1);
      });
    }
  }
  SUBCASE("requests that are cancelled") {
    group.faults(0).add(
        {.action = fault_action::delay, .kinds = message_kinds::request, .method = "*touch", .delay = 1s});
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    for (const int to : {0, 1, 2}) {
      auto call = group[0].rpc_async<touch>(to, t);
      call.cancel();
      expect_error(errc::call_cancelled, "", [&] { (void)call.get(); });
    }
  }
  check_no_references(group);
}

TEST_CASE("references in replies and one-way calls that take long to arrive are whole") {
  const std::uint16_t port = ferry_test::free_port();
  ferry::fault_proxy way_to_worker1("127.0.0.1:" + std::to_string(port));
  ferry_test::cluster group(2, {.configure = [&](ferry::worker_config& own) {
                              own.transports = {"tcp"};
                              if (own.rank == 0) return;
                              own.transport.port = port;
                              own.transport.advertise = way_to_worker1.address();
                            }});
  CHECK(group[0].rpc_sync<add_up>("worker1", 1, 2) == 3);
  const auto slow_down = [&](std::uint64_t bytes_per_second) {
    way_to_worker1.set_faults({.bytes_per_second = bytes_per_second});
  };
  constexpr std::size_t size = 300'000;
  slow_down(100'000);  // three seconds
  const auto [made, load] = group[0].rpc_sync<make_beside>("worker1", 5, size);
  CHECK(load.size() == size);
  group[0].notify<keep_beside>("worker1", group[0].make_rref<int>(7), std::string(size, 'x'));
  await([] { return has_kept(); });
  slow_down(0);
  CHECK(made.rpc_sync<&tracked::value>() == 5);
  CHECK(kept_value() == 7);
  drop_kept();
}

TEST_CASE("references held by a temporarily unreachable peer stay valid, and are released afterwards") {
  faulty_cluster group(3);
  {
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    CHECK(group[0].rpc_sync<touch>("worker2", t) == 1);
    while (!t.confirmed_by_owner()) std::this_thread::yield();  // else the cut ends its creation
    group.faults(0).cut("worker1");
    CHECK_THROWS_AS((void)t.rpc_sync<&tracked::value>(), ferry::error);
    CHECK(tracked::alive() == 1);
    group.faults(0).heal("worker1");
    CHECK(t.rpc_sync<&tracked::value>() == 1);
    group.faults(0).cut("worker1");
  }
  await_figure(group[0], "num_pending_futures", "1");
  while (group[0].debug_info("num_repeated_reference_messages") == "0") std::this_thread::yield();
  CHECK(group[1].debug_info("num_repeated_reference_messages") == "0");
  CHECK(tracked::alive() == 1);
  group.faults(0).heal("worker1");
  check_no_references(group);
}

}  // namespace reference_messages_test

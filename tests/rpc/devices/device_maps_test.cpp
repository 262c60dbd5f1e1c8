// How device maps are exchanged between the members of a group, and how invalid ones are refused.

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "expect_error.hpp"
#include "ports.hpp"
#include "tests/rpc/worker/dynamic_group.hpp"
#include "with_devices.hpp"

namespace device_maps_test {

using namespace std::chrono_literals;
using dynamic_group_test::meeting_place;
using ferry::device_map;
using ferry::errc;
using ferry_test::started;
using ferry_test::watchdog;

int plus_one(int value) { return value + 1; }

namespace {

using prepare = std::function<void(with_devices_options&)>;

member static_member(const std::string& meeting, int rank, int size, prepare how) {
  return {{.name = ferry_test::worker_name(rank), .rank = rank, .world_size = size, .init_method = meeting},
          std::move(how)};
}

member dynamic_member(const std::string& meeting, const std::string& name, prepare how, int rank = ferry::any_rank) {
  return {dynamic_group_test::config_of(meeting, name, rank), std::move(how)};
}

// The error of each worker; all must have failed.
std::vector<std::string> texts(const std::vector<started>& results) {
  std::vector<std::string> result;
  for (const started& each : results) {
    REQUIRE(each.error);
    try {
      std::rethrow_exception(each.error);
    } catch (const ferry::error& e) {
      CHECK(e.kind() == errc::invalid_argument);
      result.emplace_back(e.message());
    }
  }
  return result;
}

// Expects that three workers cannot form a group, with the same error text at each of them.
void expect_refusal(std::string_view words, const std::vector<prepare>& options) {
  const watchdog limit("a group that must not form");
  ferry_test::temporary_directory directory;
  for (const bool tcp : {false, true}) {
    CAPTURE(tcp);
    const std::string meeting =
        tcp ? "tcp://127.0.0.1:" + std::to_string(ferry_test::free_port()) : "file://" + directory.file("store");
    std::vector<member> members;
    for (int rank = 0; rank != 3; ++rank) {
      members.push_back(static_member(meeting, rank, 3, options[static_cast<std::size_t>(rank)]));
      members.back().config.init_timeout = 100s;
    }
    for (const std::string& text : texts(start_all(members))) CHECK(text == words);
    CHECK_FALSE(ferry::is_initialized());
    if (tcp) continue;
    // A group with valid maps can use the same store.
    for (member& each : members) each.prepare = nullptr;
    auto again = start_all(members);
    for (const started& each : again) REQUIRE(!each.error);
    CHECK(again[0].worker.rpc_sync<plus_one>("worker2", 1) == 2);
    ferry_test::run_together({[&] { again[0].worker.shutdown(); }, [&] { again[1].worker.shutdown(); },
                              [&] { again[2].worker.shutdown(); }});
  }
}

prepare devices(int count, const std::function<void(with_devices_options&)>& more = nullptr) {
  return [=](with_devices_options& options) {
    options.count = count;
    if (more) more(options);
  };
}

}  // namespace

TEST_CASE("[row 192] a map from or to a device that does not exist: no worker of the group starts, and all report it") {
  SUBCASE("the source") {
    expect_refusal(
        "worker worker1 has source devices with invalid indices in its device map for worker0; device map = "
        "{cuda:2: cuda:0}, device count = 2 cuda",
        {devices(1),
         devices(2,
                 [](auto& o) {
                   o.set_device_map("worker0", {{2, 0}});
                 }),
         devices(4)});
  }
  SUBCASE("the target") {
    expect_refusal(
        "worker worker1 has target devices with invalid indices in its device map for worker0; device map = "
        "{cuda:1: cuda:1}, device count = 1 cuda",
        {devices(1),
         devices(2,
                 [](auto& o) {
                   o.set_device_map("worker0", {{1, 1}});
                 }),
         devices(4)});
  }
}

TEST_CASE("[row 193] two sources of one target, set separately, prevent the group from forming") {
  expect_refusal(
      "worker worker2 has duplicated target devices in its device map for worker1; device map = "
      "{cuda:0: cuda:0, cuda:1: cuda:0}",
      {devices(2), devices(2), devices(2, [](auto& o) {
         o.set_device_map("worker1", {{0, 0}});
         o.set_device_map("worker1", {{1, 0}});
       })});
}

TEST_CASE("[row 210] a map from an undeclared device prevents the group from forming") {
  expect_refusal(
      "worker worker0 has unexpected source devices in its device map for worker1; device map = "
      "{cuda:1: cuda:0}, devices = [cuda:0]",
      {devices(2,
               [](auto& o) {
                 o.set_devices({0});
                 o.set_device_map("worker1", {{1, 0}});
               }),
       devices(2), devices(2)});
}

TEST_CASE("of several faults all workers report the same one: the first in the order of the rules") {
  SUBCASE("maps for unknown workers") {
    const auto unknown = devices(0, [](auto& o) { o.set_device_map("missing", {{"cpu", "cpu"}}); });
    expect_refusal(
        "worker worker1 has invalid target node names in its device maps: no worker of the group is called "
        "missing",
        {devices(0), unknown, unknown});
  }
  SUBCASE("declarations come before maps") {
    expect_refusal("worker worker2 has duplicated devices; devices = [cuda:0, cuda:0]",
                   {devices(2,
                            [](auto& o) {
                              o.set_device_map("worker1", {{9, 9}});
                            }),
                    devices(2), devices(2, [](auto& o) {
                      o.set_devices({0, 0});
                    })});
  }
}

TEST_CASE("every member of a group has its maps to the others, and the inverse of theirs") {
  const watchdog limit("a group with device maps");
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  auto group = start_all({static_member(meeting, 0, 3,
                                        devices(4,
                                                [](auto& o) {
                                                  o.set_device_map("worker1", {{0, 1}});
                                                  o.set_device_map("worker1", {{"cpu", 0}, {3, 2}});
                                                  o.set_device_map("worker0", {{0, 1}, {1, 0}});
                                                })),
                          static_member(meeting, 1, 3,
                                        devices(3,
                                                [](auto& o) {
                                                  o.set_devices({0, 2, 1});
                                                })),
                          static_member(meeting, 2, 3, devices(1, [](auto& o) {
                                          o.set_device_map("worker0", {{0, 2}});
                                        }))});
  for (const started& each : group) REQUIRE(!each.error);
  const ferry::worker& zero = group[0].worker;
  const ferry::worker& one = group[1].worker;
  const ferry::worker& two = group[2].worker;
  CHECK(zero.device_map_to("worker1") == device_map{{"cpu", 0}, {0, 1}, {3, 2}});
  CHECK(one.device_map_back_to("worker0") == device_map{{0, "cpu"}, {1, 0}, {2, 3}});
  CHECK(zero.device_map_back_to("worker1").empty());
  CHECK(one.device_map_to("worker0").empty());
  CHECK(zero.device_map_back_to("worker2") == device_map{{2, 0}});
  CHECK(zero.device_map_to("worker0") == device_map{{0, 1}, {1, 0}});
  CHECK(zero.device_map_back_to("worker0") == device_map{{0, 1}, {1, 0}});
  CHECK(two.device_map_to("worker1").empty());
  CHECK(zero.devices() == std::vector{gpu(0), gpu(1), gpu(2), gpu(3)});
  CHECK(one.devices() == std::vector{gpu(0), gpu(1), gpu(2)});
  CHECK(two.devices() == std::vector{gpu(0)});
  expect_error(errc::unknown_worker, "missing", [&] { (void)zero.device_map_to("missing"); });
  CHECK(zero.rpc_sync<plus_one>("worker1", 1) == 2);
  ferry_test::run_together(
      {[&] { group[0].worker.shutdown(); }, [&] { group[1].worker.shutdown(); }, [&] { group[2].worker.shutdown(); }});
}

TEST_CASE("a dynamic group: maps can name workers that join later, and members receive the maps of newcomers") {
  meeting_place at;
  ferry::worker first = start(dynamic_member(at.method, "first", devices(2, [](auto& o) {
                                               o.set_device_map("late", {{1, 0}});
                                               o.set_device_map("never", {{0, 9}});
                                             })));
  dynamic_group_test::events seen(first);
  CHECK(first.devices() == std::vector{gpu(0), gpu(1)});
  ferry::worker second = start(dynamic_member(at.method, "second", devices(0)));
  ferry::worker late = start(dynamic_member(at.method, "late", devices(3, [](auto& o) {
                                              o.set_device_map("first", {{2, 1}, {0, 0}});
                                            })));
  seen.up_to("late joined");
  CHECK(first.device_map_to("late") == device_map{{1, 0}});
  CHECK(late.device_map_back_to("first") == device_map{{0, 1}});
  CHECK(late.device_map_to("first") == device_map{{0, 0}, {2, 1}});
  CHECK(first.device_map_back_to("late") == device_map{{0, 0}, {1, 2}});
  CHECK(late.devices() == std::vector{gpu(0), gpu(2)});
  CHECK(second.device_map_back_to("first").empty());
  CHECK(first.rpc_sync<plus_one>("late", 1) == 2);
  CHECK(late.rpc_sync<plus_one>("first", 1) == 2);
  // When one leaves, the maps of the others do not change.
  second.leave();
  seen.up_to("second left");
  CHECK(first.device_map_to("late") == device_map{{1, 0}});
  CHECK(first.device_map_back_to("late") == device_map{{0, 0}, {1, 2}});
  CHECK(late.device_map_back_to("first") == device_map{{0, 1}});
  // Its successor may have other maps.
  late.leave();
  seen.up_to("late left");
  ferry::worker next = start(dynamic_member(at.method, "late", devices(1)));
  seen.up_to("late joined");
  CHECK(first.device_map_to("late") == device_map{{1, 0}});
  CHECK(first.device_map_back_to("late").empty());
  CHECK(next.device_map_back_to("first") == device_map{{0, 1}});
  next.leave();
  first.leave();
}

TEST_CASE(
    "in a dynamic group the devices of a worker that declares none follow the maps of workers that join and leave") {
  meeting_place at;
  ferry::worker first = start(dynamic_member(at.method, "first", devices(3)));
  dynamic_group_test::events seen(first);
  CHECK(first.devices().empty());
  for (const int index : {0, 2}) {
    ferry::worker late = start(dynamic_member(at.method, "late", devices(3, [&](auto& o) {
                                                o.set_device_map("first", {{1, index}});
                                              })));
    seen.up_to("late joined");
    CHECK(first.devices() == std::vector{gpu(index)});
    late.leave();
    seen.up_to("late left");
    while (!first.devices().empty()) std::this_thread::yield();
  }
  first.leave();
}

TEST_CASE("a newcomer with invalid maps is refused with an error text, and other workers are unaffected") {
  meeting_place at;
  ferry::worker first = start(dynamic_member(at.method, "first",
                                             devices(2,
                                                     [](auto& o) {
                                                       o.set_device_map("late", {{0, 1}});
                                                     }),
                                             7));
  ferry::worker second = start(dynamic_member(at.method, "second", devices(1)));
  const auto refused = [&](std::string_view words, prepare how, const std::string& name = "late") {
    expect_error(errc::invalid_argument, words, [&] { (void)start(dynamic_member(at.method, name, std::move(how))); });
    CHECK(first.rpc_sync<plus_one>("second", 1) == 2);
    CHECK(second.rpc_sync<plus_one>("first", 1) == 2);
    CHECK(first.workers().size() == 2);
  };
  refused("worker late has duplicated devices; devices = [cuda:0, cuda:0]", devices(2, [](auto& o) {
            o.set_devices({0, 0});
          }));
  refused(
      "worker late has target devices with invalid indices in its device map for second; device map = {cuda:0: "
      "cuda:1}, device count = 1 cuda",
      devices(2, [](auto& o) {
        o.set_device_map("second", {{0, 1}});
      }));
  refused(
      "worker late has source devices with invalid indices in its device map for absent; device map = {cuda:2: "
      "cuda:9}, device count = 2 cuda",
      devices(2, [](auto& o) {
        o.set_device_map("absent", {{2, 9}});
      }));
  // A member has a map for it that needs devices it does not have.
  refused(
      "worker first has target devices with invalid indices in its device map for late; device map = {cuda:0: "
      "cuda:1}, device count = 1 cuda",
      devices(1));
  refused(
      "worker first has unexpected target devices in its device map for late; device map = {cuda:0: cuda:1}, "
      "devices = [cuda:0]",
      devices(2, [](auto& o) { o.set_devices({0}); }));
  // Its name stays free.
  ferry::worker late = start(dynamic_member(at.method, "late", devices(2)));
  CHECK(late.rpc_sync<plus_one>("first", 1) == 2);
  CHECK(late.device_map_back_to("first") == device_map{{1, 0}});
  // After the member with that map has left, it can join with fewer devices.
  late.leave();
  first.leave();
  ferry::worker again = start(dynamic_member(at.method, "late", devices(1)));
  CHECK(again.rpc_sync<plus_one>("second", 1) == 2);
  again.leave();
  second.leave();
}

TEST_CASE("of two workers that join concurrently with incompatible maps, one joins") {
  meeting_place at;
  for (int round = 0; round != 5; ++round) {
    const std::string a = "a" + std::to_string(round);
    const std::string b = "b" + std::to_string(round);
    ferry::worker stays = start(dynamic_member(at.method, "stays", devices(0)));
    auto both = start_all({dynamic_member(at.method, a,
                                          devices(2,
                                                  [&](auto& o) {
                                                    o.set_device_map(b, {{0, 1}});
                                                  })),
                           dynamic_member(at.method, b, devices(1))});
    REQUIRE(!both[0].error != !both[1].error);
    const started& out = both[0].error ? both[0] : both[1];
    started& in = both[0].error ? both[1] : both[0];
    expect_error(errc::invalid_argument, "target devices with invalid indices in its device map for " + b,
                 [&] { std::rethrow_exception(out.error); });
    CHECK(stays.rpc_sync<plus_one>(in.worker.name(), 1) == 2);
    CHECK(stays.workers().size() == 2);
    in.worker.leave();
    stays.leave();
  }
}

}  // namespace device_maps_test

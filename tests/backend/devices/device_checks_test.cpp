// The checks of device maps over plain data: each rule, their order, their bounds, and what follows from the maps.

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "backend/devices/device_checks.hpp"
#include "expect_error.hpp"

namespace device_checks_test {

using ferry::device;
using ferry::device_kind;
using ferry::device_map;
using ferry::device_pair;
using ferry::errc;
using ferry::detail::broken_device_rule;
using ferry::detail::device_record;
using ferry::detail::devices_in_use;
using ferry::detail::maps_between;
using ferry::detail::message_route;
using ferry::detail::target_of;
using ferry::detail::worker_devices;

namespace {

constexpr device host;
constexpr device gpu(int index) { return {device_kind::cuda, index}; }
constexpr device of_another_kind(int index) { return {static_cast<device_kind>(9), index}; }

// A group by rank; a worker without a record has published nothing.
struct group {
  std::vector<std::pair<std::string, std::optional<device_record>>> workers;

  device_record& operator[](const std::string& name) {
    for (auto& [known, record] : workers) {
      if (known == name) return *record;
    }
    workers.emplace_back(name, device_record{});
    return *workers.back().second;
  }
  [[nodiscard]] std::vector<worker_devices> members() const {
    std::vector<worker_devices> result;
    for (const auto& [name, record] : workers) result.push_back({name, record ? &*record : nullptr});
    return result;
  }
  [[nodiscard]] std::string broken(bool complete = true) const { return broken_device_rule(members(), complete); }
};

group with_devices(int a, int b) {
  group result;
  result["a"].counts = {{device_kind::cuda, a}};
  result["b"].counts = {{device_kind::cuda, b}};
  return result;
}

device_map many_to_one() { return device_map::merged({{gpu(0), gpu(0)}, {gpu(1), gpu(0)}}); }

}  // namespace

TEST_CASE("a group without maps breaks no rule, whatever it has") {
  CHECK(group().broken().empty());
  CHECK(with_devices(0, 0).broken().empty());
  CHECK(with_devices(8, 1).broken().empty());
  group silent = with_devices(1, 1);
  silent.workers[0].second.reset();
  CHECK(silent.broken().empty());
}

TEST_CASE("each rule has its bounds and its text") {
  group all = with_devices(2, 3);
  device_record& a = all["a"];
  device_record& b = all["b"];
  const auto map_is = [&](const device_map& map) {
    a.maps["b"] = map;
    return all.broken();
  };
  SUBCASE("1: no device is declared twice") {
    b.devices = {gpu(1), gpu(0), gpu(1)};
    CHECK(all.broken() == "worker b has duplicated devices; devices = [cuda:1, cuda:0, cuda:1]");
    b.devices = {gpu(1), gpu(0)};
    CHECK(all.broken().empty());
  }
  SUBCASE("2: a declared device exists") {
    b.devices = {gpu(0), gpu(3)};
    CHECK(all.broken() ==
          "worker b has devices with invalid indices; devices = [cuda:0, cuda:3], device count = 3 cuda");
    b.devices = {gpu(0), gpu(2)};
    CHECK(all.broken().empty());
    b.devices = {host};
    CHECK(all.broken().empty());
    b.devices = {of_another_kind(0)};
    CHECK(all.broken() == "worker b has devices with invalid indices; devices = [unknown:0], device count = 3 cuda");
    b.counts[static_cast<device_kind>(9)] = 1;
    CHECK(all.broken().empty());
    b.counts = {};
    CHECK(all.broken() == "worker b has devices with invalid indices; devices = [unknown:0], device count = none");
  }
  SUBCASE("3: a map leads to a member, in a group that has all its members") {
    a.maps["c"] = {{0, 0}};
    a.maps["d"] = {};
    CHECK(all.broken() ==
          "worker a has invalid target node names in its device maps: no worker of the group is called c, d");
    CHECK(all.broken(false).empty());
    a.maps = {{"a", {{0, 1}}}, {"b", {{0, 0}}}};
    CHECK(all.broken().empty());
  }
  SUBCASE("4: a target has one source") {
    CHECK(map_is(many_to_one()) ==
          "worker a has duplicated target devices in its device map for b; device map = {cuda:0: cuda:0, cuda:1: "
          "cuda:0}");
    CHECK(map_is(device_map{{0, 1}, {1, 0}}).empty());
  }
  SUBCASE("5: sources exist, or are declared") {
    CHECK(map_is({{2, 0}}) ==
          "worker a has source devices with invalid indices in its device map for b; device map = {cuda:2: cuda:0}, "
          "device "
          "count = 2 cuda");
    CHECK(map_is({{"cpu", 0}, {1, 1}}).empty());
    CHECK(map_is({{of_another_kind(0), gpu(0)}}) ==
          "worker a has source devices with invalid indices in its device map for b; device map = {unknown:0: cuda:0}, "
          "device count = 2 cuda");
    a.devices = {gpu(1)};
    CHECK(map_is({{1, 0}}).empty());
    CHECK(map_is({{0, 0}}) ==
          "worker a has unexpected source devices in its device map for b; device map = {cuda:0: cuda:0}, devices = "
          "[cuda:1]");
    // A list of devices is the whole list: the CPU is not in it.
    CHECK(
        map_is({{"cpu", "cpu"}}) ==
        "worker a has unexpected source devices in its device map for b; device map = {cpu: cpu}, devices = [cuda:1]");
  }
  SUBCASE("6: targets exist, or are declared") {
    CHECK(map_is({{0, 3}}) ==
          "worker a has target devices with invalid indices in its device map for b; device map = {cuda:0: cuda:3}, "
          "device "
          "count = 3 cuda");
    CHECK(map_is({{0, 2}, {1, "cpu"}}).empty());
    b.devices = {gpu(0), gpu(1)};
    CHECK(map_is({{0, 1}}).empty());
    CHECK(map_is({{0, 2}}) ==
          "worker a has unexpected target devices in its device map for b; device map = {cuda:0: cuda:2}, devices = "
          "[cuda:0, cuda:1]");
    all.workers[1].second.reset();  // it has not published a record
    CHECK(map_is({{0, 99}}).empty());
  }
}

TEST_CASE("[rows 192 and 210] the number of a device is below the number of devices, and a source is declared") {
  group all = with_devices(2, 2);
  all["a"].maps["b"] = {{2, 0}};
  CHECK(all.broken().find("source devices with invalid indices") != std::string::npos);
  all["a"].maps["b"] = {{0, 2}};
  CHECK(all.broken().find("target devices with invalid indices") != std::string::npos);
  all["a"].maps["b"] = {{1, 1}};
  CHECK(all.broken().empty());
  all["a"].devices = {gpu(0)};
  CHECK(all.broken().find("unexpected source devices") != std::string::npos);
}

TEST_CASE("rules are checked in their order: declarations of all first, then source by source, target by target") {
  // Everything is wrong at once; each fault is fixed in turn, and the next one is reported.
  group all;
  const auto reported = [&](std::string_view words) {
    const std::string broken = all.broken();
    CHECK_MESSAGE(broken.find(words) != std::string::npos, "'", std::string(words), "' is not in '", broken, "'");
  };
  for (const char* name : {"r0", "r1", "r2"}) {
    device_record& each = all[name];
    each.counts = {{device_kind::cuda, 2}};
    each.devices = {gpu(7), gpu(7)};
    each.maps = {{"absent", {}}, {"r0", {{7, 0}}}, {"r1", {{0, 7}}}, {"r2", many_to_one()}};
  }
  for (const char* name : {"r0", "r1", "r2"}) {
    reported("worker " + std::string(name) + " has duplicated devices");
    all[name].devices = {gpu(7)};
    reported("worker " + std::string(name) + " has devices with invalid indices");
    all[name].devices = {gpu(0), gpu(1)};
  }
  for (const char* name : {"r0", "r1", "r2"}) {
    device_record& each = all[name];
    const std::string who = "worker " + std::string(name);
    reported(who + " has invalid target node names");
    each.maps.erase("absent");
    reported(who + " has unexpected source devices in its device map for r0");
    each.devices.clear();
    reported(who + " has source devices with invalid indices in its device map for r0");
    each.maps["r0"] = {{1, 0}};
    const std::string last =
        all["r1"].devices.empty() ? " has target devices with invalid indices" : " has unexpected target devices";
    reported(who + last + " in its device map for r1");
    each.maps["r1"] = {{0, 0}};
    reported(who + " has duplicated target devices in its device map for r2");
    each.maps["r2"] = {{0, 0}};
  }
  CHECK(all.broken().empty());
  // Of one map: duplicated targets are reported before missing targets or sources.
  all["r0"].maps["r1"] = device_map::merged({{gpu(8), gpu(9)}, {gpu(9), gpu(9)}});
  reported("duplicated target devices");
  all["r0"].maps["r1"] = {{8, 9}};
  reported("source devices with invalid indices");
}

// ---------------------------------------------------------------- random groups

namespace {

device any_device(std::mt19937& random, int most) {
  const int index = std::uniform_int_distribution<int>(-1, most)(random);
  return index < 0 ? host : gpu(index);
}

device_map any_map(std::mt19937& random, int most) {
  std::map<device, device> entries;
  for (int left = std::uniform_int_distribution<int>(0, 3)(random); left != 0; --left)
    entries[any_device(random, most)] = any_device(random, most);
  std::vector<device_pair> pairs;
  for (const auto& [from, to] : entries) pairs.emplace_back(from, to);
  return device_map::merged(pairs);
}

device_record any_record(std::mt19937& random, const std::vector<std::string>& names, int most) {
  const auto one_in = [&](int n) { return std::uniform_int_distribution<int>(1, n)(random) == 1; };
  device_record result;
  result.counts = {{device_kind::cuda, std::uniform_int_distribution<int>(most, most + 1)(random)}};
  if (one_in(4)) {
    for (int index = 0; index <= most; ++index) {
      if (!one_in(8)) result.devices.push_back(gpu(index));
    }
    if (one_in(16)) result.devices.push_back(gpu(0));
  }
  for (const std::string& name : names) {
    if (one_in(3)) result.maps[name] = any_map(random, most);
  }
  return result;
}

// An independent implementation of the documented rules; returns which rule is broken, by which worker, for which
// target.
std::string naive(const group& all, bool complete) {
  const auto ok = [](device each, const device_record& at) {
    return each == host || (each.is_cuda() && each.index < at.counts.at(device_kind::cuda));
  };
  const auto within = [](const std::set<device>& some, const std::vector<device>& list) {
    return std::all_of(some.begin(), some.end(),
                       [&](device each) { return std::count(list.begin(), list.end(), each) != 0; });
  };
  for (const auto& [name, record] : all.workers) {
    for (const device each : record->devices) {
      if (std::count(record->devices.begin(), record->devices.end(), each) > 1) return name + " duplicated devices";
    }
    for (const device each : record->devices) {
      if (!ok(each, *record)) return name + " devices with invalid indices";
    }
  }
  for (const auto& [name, record] : all.workers) {
    const auto find = [&](const std::string& target) -> const device_record* {
      for (const auto& [other, found] : all.workers) {
        if (other == target) return &*found;
      }
      return nullptr;
    };
    for (const auto& [target, map] : record->maps) {
      if (complete && !find(target)) return name + " invalid target node names";
    }
    for (const auto& [target, map] : record->maps) {
      std::set<device> sources;
      std::set<device> targets;
      for (const device_pair& each : map) {
        sources.insert(each.from);
        targets.insert(each.to);
      }
      const auto all_ok = [&](const std::set<device>& some, const device_record& at) {
        return std::all_of(some.begin(), some.end(), [&](device each) { return ok(each, at); });
      };
      const std::string to = " for " + target;
      if (targets.size() != map.size()) return name + " duplicated target devices" + to;
      if (!record->devices.empty()) {
        if (!within(sources, record->devices)) return name + " unexpected source devices" + to;
      } else if (!all_ok(sources, *record)) {
        return name + " source devices with invalid indices" + to;
      }
      const device_record* other = find(target);
      if (other && !other->devices.empty()) {
        if (!within(targets, other->devices)) return name + " unexpected target devices" + to;
      } else if (other && !all_ok(targets, *other)) {
        return name + " target devices with invalid indices" + to;
      }
    }
  }
  return {};
}

// "a duplicated devices" of "worker a has duplicated devices; ...".
std::string shortened(std::string text) {
  if (text.empty()) return text;
  const auto drop = [&](std::string_view what, std::string_view by) {
    if (const auto at = text.find(what); at != std::string::npos) text.replace(at, what.size(), by);
  };
  drop("worker ", "");
  drop(" has ", " ");
  drop(" in its device maps", "");
  drop(" in its device map", "");
  return text.substr(0, text.find_first_of(";:"));
}

}  // namespace

TEST_CASE("random groups pass and fail according to the rules, and a newcomer fails as the whole group would") {
  std::mt19937 random(11);
  std::map<std::string, int> seen;
  int joins = 0;
  int conflicts = 0;
  for (int round = 0; round != 6000; ++round) {
    CAPTURE(round);
    const int most = std::uniform_int_distribution<int>(1, 3)(random);
    const std::vector<std::string> names{"a", "b", "c", "d"};
    group all;
    for (const char* name : {"b", "a", "c"}) all[name] = any_record(random, names, most);
    for (const bool complete : {true, false}) {
      const std::string expected = naive(all, complete);
      CHECK(shortened(all.broken(complete)) == expected);
      seen[expected.substr(0, expected.find(" for ")).substr(expected.empty() ? 0 : 2)] += 1;
    }
    if (!all.broken(false).empty()) continue;
    const device_record record = any_record(random, names, most);
    const auto place = std::uniform_int_distribution<std::size_t>(0, 3)(random);
    const group before = all;
    all.workers.insert(all.workers.begin() + static_cast<std::ptrdiff_t>(place), {"d", record});
    const std::string conflict = broken_device_rule({"d", &record}, place, before.members());
    CHECK(conflict == all.broken(false));
    ++joins;
    conflicts += conflict.empty() ? 0 : 1;
  }
  for (const char* rule :
       {"", "duplicated devices", "devices with invalid indices", "invalid target node names",
        "duplicated target devices", "unexpected source devices", "source devices with invalid indices",
        "unexpected target devices", "target devices with invalid indices"}) {
    CAPTURE(rule);
    CHECK(seen[rule] > 10);
  }
  CHECK(joins > 200);
  CHECK(conflicts > 100);
  CHECK(joins - conflicts > 50);
}

// ---------------------------------------------------------------- what follows from the maps

TEST_CASE("the maps between two workers are the own one, and the inverse of the other's") {
  device_record a;
  device_record b;
  a.maps["b"] = {{0, 1}, {"cpu", 0}};
  b.maps["a"] = {{2, 3}};
  b.maps["c"] = {{0, 0}};
  const auto at_a = maps_between({"a", &a}, {"b", &b});
  REQUIRE(at_a);
  CHECK(at_a->requests == device_map{{0, 1}, {"cpu", 0}});
  CHECK(at_a->responses == device_map{{3, 2}});
  const auto at_b = maps_between({"b", &b}, {"a", &a});
  REQUIRE(at_b);
  CHECK(at_b->requests == device_map{{2, 3}});
  CHECK(at_b->responses == device_map{{1, 0}, {0, "cpu"}});
  // The response inverts the request's map, at either end.
  for (const device_pair& each : at_a->requests) CHECK(*at_b->responses.find(each.to) == each.from);
  for (const device_pair& each : at_b->requests) CHECK(*at_a->responses.find(each.to) == each.from);
  CHECK_FALSE(maps_between({"a", &a}, {"c", nullptr}));
  CHECK_FALSE(maps_between({"c", nullptr}, {"a", &a}));
  const auto at_c = maps_between({"c", nullptr}, {"b", &b});
  REQUIRE(at_c);
  CHECK(at_c->requests.empty());
  CHECK(at_c->responses == device_map{{0, 0}});
  a.maps["a"] = {{0, 1}};
  const auto with_itself = maps_between({"a", &a}, {"a", &a});
  REQUIRE(with_itself);
  CHECK(with_itself->requests == device_map{{0, 1}});
  CHECK(with_itself->responses == device_map{{1, 0}});
}

TEST_CASE(
    "the devices of a worker are those that it declared, else those of all maps from and to it, without the CPU") {
  device_record own;
  const std::vector<device_map> none;
  CHECK(devices_in_use(own, none).empty());
  own.maps["b"] = {{"cpu", 5}, {3, 0}, {1, "cpu"}};
  own.maps["c"] = {{3, 7}};
  CHECK(devices_in_use(own, none) == std::vector{gpu(1), gpu(3)});
  const std::vector<device_map> back{{{2, 0}, {"cpu", 1}}, {{0, 0}}};
  CHECK(devices_in_use(own, back) == std::vector{gpu(0), gpu(1), gpu(2), gpu(3)});
  own.devices = {gpu(5), gpu(4)};
  CHECK(devices_in_use(own, back) == std::vector{gpu(4), gpu(5)});
}

TEST_CASE("the target device of a tensor") {
  const std::vector<device> in_use{gpu(0), gpu(1)};
  const device_map map{{0, 1}, {"cpu", 0}, {2, 2}};
  const device_map without_cpu{{0, 1}, {1, "cpu"}};
  const device_map no_entries;
  for (const bool response : {false, true}) {
    CAPTURE(response);
    const message_route unmapped{response, "w", nullptr, &in_use};
    const message_route empty{response, "w", &no_entries, &in_use};
    const message_route mapped{response, "w", &map, &in_use};
    const message_route plain{response, "w", &without_cpu, &in_use};
    // The CPU: its entry, else it stays where it is.
    CHECK(target_of(unmapped, host, 0) == host);
    CHECK(target_of(empty, host, 0) == host);
    CHECK(target_of(plain, host, 0) == host);
    CHECK(target_of(mapped, host, 0) == gpu(0));
    CHECK(target_of(mapped, gpu(0), 0) == gpu(1));
    CHECK(target_of(plain, gpu(1), 0) == host);
    // Others need an entry.
    const std::string_view words =
        response
            ? "tensor 3 of the response is on cuda:0: only CPU tensors are supported by default; move it to the CPU, "
              "or configure a device map (set_device_map) at w, whose map for this worker leads results back: Response "
              "device mapping is not available for destination w; device cuda:0"
            : "tensor 3 of the request is on cuda:0: only CPU tensors are supported by default; move it to the CPU, "
              "or configure a device map (set_device_map): Request device mapping is not available for destination "
              "w; device cuda:0";
    expect_error(errc::bad_device, words, [&] { (void)target_of(unmapped, gpu(0), 3); });
    expect_error(errc::bad_device, words, [&] { (void)target_of(empty, gpu(0), 3); });
    expect_error(errc::bad_device, "is not available for destination w; device cuda:5",
                 [&] { (void)target_of(mapped, gpu(5), 0); });
  }
  // The map of the call alone is named.
  expect_error(errc::bad_device,
               "tensor 1 of the request is on cuda:1, for which the placement of the call, {cuda:0: cuda:1}, has no "
               "entry; add one, or move the tensor: "
               "Request device mapping is not available for destination w; device cuda:1",
               [] {
                 const device_map placement{{0, 1}};
                 (void)target_of({false, "w", &placement, nullptr, true}, gpu(1), 1);
               });
  expect_error(errc::bad_device,
               "for which the inverse of the call's placement, {cuda:1: cuda:0}, has no entry; add one, or move the "
               "tensor: Response",
               [] {
                 const device_map back{{1, 0}};
                 (void)target_of({true, "w", &back, nullptr, true}, gpu(0), 0);
               });
  // Mapped, but to a device that this worker's messages do not use.
  const message_route response{true, "w", &map, &in_use};
  expect_error(
      errc::bad_device,
      "user-function output tensor 1 is on device cuda:2, which is not one of the input tensor devices [cuda:0, "
      "cuda:1]",
      [&] { (void)target_of(response, gpu(2), 1); });
  const message_route request{false, "w", &map, nullptr};
  CHECK(target_of(request, gpu(2), 0) == gpu(2));
  CHECK(target_of({true, "w", &map, nullptr}, gpu(2), 0) == gpu(2));  // nothing was declared: the map decides
}

TEST_CASE("a map for one call is checked like those of the options") {
  group all = with_devices(2, 1);
  const auto members = all.members();
  CHECK(broken_device_rule(members[0], {{1, 0}}, members[1]).empty());
  CHECK(broken_device_rule(members[0], many_to_one(), members[1]).find("duplicated target") != std::string::npos);
  CHECK(broken_device_rule(members[0], {{2, 0}}, members[1]).find("source devices with invalid") != std::string::npos);
  CHECK(broken_device_rule(members[0], {{0, 1}}, members[1]).find("target devices with invalid") != std::string::npos);
}

// ---------------------------------------------------------------- device records

TEST_CASE("a device record survives the round trip, with kinds that are unknown here") {
  device_record record;
  CHECK(device_record::decode(record.encode()) == record);
  CHECK(record.encode() == "- -");
  record.counts = {{device_kind::cuda, 8}, {static_cast<device_kind>(255), 0}};
  record.devices = {gpu(3), gpu(0), gpu(3)};
  record.maps["a-b_c:d"] = {{0, 1}, {"cpu", "cpu"}, {of_another_kind(2147483647), 4}};
  record.maps["empty"] = {};
  record.maps["z"] = many_to_one();
  CHECK(record.encode() == "1:8,255:0 1:3,1:0,1:3 a-b_c:d 0:0>0:0,1:0>1:1,9:2147483647>1:4 empty - z 1:0>1:0,1:1>1:0");
  CHECK(device_record::decode(record.encode()) == record);
  std::mt19937 random(3);
  for (int round = 0; round != 200; ++round) {
    const device_record any = any_record(random, {"a", "b", "c"}, 3);
    CHECK(device_record::decode(any.encode()) == any);
  }
}

TEST_CASE("an invalid device record is refused") {
  for (const char* text : {"",
                           "-",
                           "- ",
                           " -",
                           "- - a",
                           "- - a ",
                           "- - bad/name -",
                           "- -  -",
                           "1 -",
                           "1: -",
                           "1:x -",
                           "1:-1 -",
                           "1:1,1:2 -",
                           "1:1, -",
                           "256:1 -",
                           "-1:1 -",
                           "- 1",
                           "- 1:2147483648",
                           "- 1:1,,1:2",
                           "- 1:1;1:2",
                           "- - a 1:0",
                           "- - a 1:0>",
                           "- - a >1:0",
                           "- - a 1:0>1:1,1:0>1:2",
                           "- - a - a -",
                           "- - a -,-",
                           "1:1 1:0 a 1:0>1:0 b",
                           "- - a 1:0>1:0 ",
                           "- -\n",
                           "- 1:0\n"}) {
    CAPTURE(text);
    expect_error(errc::malformed, "device record", [&] { (void)device_record::decode(text); });
  }
  const std::string long_one = "- " + std::string(device_record::max_text, '1');
  expect_error(errc::limit_exceeded, "the limit is", [&] { (void)device_record::decode(long_one); });
}

}  // namespace device_checks_test

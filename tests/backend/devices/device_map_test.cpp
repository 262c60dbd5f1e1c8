#include <ferry/backend/device_map.hpp>

#include <map>
#include <random>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/backend/options.hpp>
#include <ferry/device/cuda.hpp>
#include <ferry/device/traits.hpp>

#include "expect_error.hpp"

namespace device_map_test {

using ferry::device;
using ferry::device_kind;
using ferry::device_map;
using ferry::device_pair;
using ferry::device_spec;
using ferry::errc;

namespace {

constexpr device host;
constexpr device gpu(int index) { return {device_kind::cuda, index}; }

const std::string name_of_a_device = "cuda:7";

}  // namespace

TEST_CASE("a device is written as a device, by name, or as the number of a CUDA device") {
  CHECK(device_spec("cuda:1").where() == gpu(1));
  CHECK(device_spec("cuda").where() == gpu(0));
  CHECK(device_spec("cpu").where() == host);
  CHECK(device_spec(name_of_a_device).where() == gpu(7));
  CHECK(device_spec(std::string_view("cuda:2")).where() == gpu(2));
  CHECK(device_spec(0).where() == gpu(0));
  CHECK(device_spec(std::size_t{3}).where() == gpu(3));
  CHECK(device_spec(gpu(4)).where() == gpu(4));
  expect_error(errc::bad_device, "index must not be negative, and is -1", [] { device_spec(-1); });
  expect_error(errc::bad_device, "index must not be negative, and is -3", [] { device_spec(gpu(-3)); });
  expect_error(errc::bad_device, "must not be negative", [] { device_spec(-(std::int64_t{1} << 40)); });
  expect_error(errc::bad_device, "at most 2147483647, and is 1099511627776",
               [] { device_spec(std::int64_t{1} << 40); });
  expect_error(errc::bad_device, "and is 18446744073709551615", [] { device_spec(~std::uint64_t{0}); });
  CHECK(device_spec(2147483647).where().index == 2147483647);  // what a machine has, the group checks
  expect_error(errc::bad_device, "cuda:-1", [] { device_spec("cuda:-1"); });
  expect_error(errc::bad_device, "gpu:0", [] { device_spec("gpu:0"); });
  static_assert(!std::is_constructible_v<device_spec, bool>);
  static_assert(!std::is_constructible_v<device_spec, double>);
}

TEST_CASE("a device map is ordered by its sources, however it is written") {
  const device_map map{{"cuda:1", "cuda:0"}, {"cpu", "cuda:1"}, {0, gpu(2)}};
  CHECK(to_string(map) == "{cpu: cuda:1, cuda:0: cuda:2, cuda:1: cuda:0}");
  CHECK(map == device_map{{0, 2}, {1, 0}, {"cpu", 1}});
  CHECK(map == device_map(std::vector<device_pair>{{gpu(1), gpu(0)}, {host, gpu(1)}, {gpu(0), gpu(2)}}));
  CHECK(map.size() == 3);
  CHECK(*map.find(gpu(1)) == gpu(0));
  CHECK(*map.find(host) == gpu(1));
  CHECK(map.find(gpu(2)) == nullptr);
  CHECK(device_map().empty());
  CHECK(device_map().find(host) == nullptr);
  CHECK(to_string(device_map()) == "{}");
  CHECK(device_map{{0, 1}, {0, 1}} == device_map{{0, 1}});
  CHECK(device_map{{0, 1}} != device_map{{1, 0}});
}

TEST_CASE("[row 194] a source with two targets is refused at once, in one map and by a later one") {
  expect_error(errc::invalid_argument, "one-to-one, but cuda:0 leads to cuda:1 and to cuda:2", [] {
    device_map{{0, 1}, {0, 2}};
  });
  ferry::rpc_options options;
  options.set_device_map("worker1", {{"cuda:0", "cuda:1"}});
  expect_error(errc::invalid_argument, "cuda:0 leads to cuda:1 and to cuda:0", [&] {
    options.set_device_map("worker1", {{"cuda:1", "cuda:2"}, {"cuda:0", "cuda:0"}});
  });
  CHECK(options.device_maps.at("worker1") == device_map{{0, 1}});  // none of its entries was added
  options.set_device_map("worker1", {{"cuda:0", "cuda:1"}});       // adding the same entry again is allowed
  options.set_device_map("worker2", {{"cuda:0", "cuda:2"}});       // and so is another worker's
  CHECK(options.device_maps.size() == 2);
  CHECK(options.device_maps.at("worker2") == device_map{{0, 2}});
}

TEST_CASE("two sources of one target are refused in one map, and detected later when two maps are merged") {
  expect_error(errc::invalid_argument, "one-to-one, but cuda:0 and cuda:1 both lead to cpu", [] {
    device_map{{"cuda:0", "cpu"}, {"cuda:1", "cpu"}};
  });
  ferry::worker_config config;
  config.set_device_map("worker1", {{0, 1}});
  config.set_device_map("worker1", {{1, 1}});
  const device_map& both = config.device_maps.at("worker1");
  CHECK(both.size() == 2);
  CHECK_FALSE(both.is_one_to_one());
  expect_error(errc::invalid_argument, "{cuda:0: cuda:1, cuda:1: cuda:1} has no inverse: cuda:0 and cuda:1",
               [&] { (void)both.inverse(); });
  CHECK(device_map::merged({{gpu(1), gpu(1)}, {gpu(0), gpu(1)}}) == both);
  expect_error(errc::invalid_argument, "leads to", [] {
    (void)device_map::merged({{gpu(1), host}, {gpu(1), gpu(2)}});
  });
}

TEST_CASE("[row 222] the options of a worker take maps and devices in braces, and refuse invalid devices") {
  const ferry::worker_config config{.device_maps = {{"worker1", {{"cuda:0", "cuda:1"}}}, {"worker2", {{0, 0}, {1, 1}}}},
                                    .devices = {gpu(0), gpu(1)}};
  const ferry::rpc_options taken = config.options();
  CHECK(taken.device_maps == config.device_maps);
  CHECK(taken.devices == config.devices);

  ferry::rpc_options options;
  options.set_devices({"cuda:0", 1, gpu(2)});
  CHECK(options.devices == std::vector{gpu(0), gpu(1), gpu(2)});
  options.set_devices({3});
  CHECK(options.devices == std::vector{gpu(3)});  // the list was replaced
  options.set_devices({1, 1});                    // detected by the group's checks
  expect_error(errc::invalid_argument, "beside the CPU", [&] { options.set_devices({0, "cpu"}); });
  CHECK(options.devices == std::vector{gpu(1), gpu(1)});
  expect_error(errc::bad_device, "negative", [&] { options.set_devices({-1}); });
  options.devices = {host};
  expect_error(errc::invalid_argument, "beside the CPU", [&] { options.check(); });
  options.devices = {gpu(-2)};
  expect_error(errc::bad_device, "negative", [&] { options.check(); });
  options.devices.clear();

  expect_error(errc::invalid_argument, "name", [&] { options.set_device_map("", {{0, 0}}); });
  expect_error(errc::invalid_argument, "bad name", [&] { options.set_device_map("bad name", {{0, 0}}); });
  options.device_maps["bad\nname"] = {{0, 0}};
  expect_error(errc::invalid_argument, "pattern", [&] { options.check(); });
  options.device_maps.clear();
  for (int i = 0; i != 2000; ++i)
    options.set_device_map("worker" + std::to_string(i), {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}, {6, 6}});
  expect_error(errc::invalid_argument, "device_maps and devices take", [&] { options.check(); });
}

TEST_CASE("maps and devices are set in the worker_config, or in the backend's options, or in both alike") {
  ferry::worker_config config;
  ferry::rpc_options options;
  options.set_device_map("worker1", {{0, 1}});
  config.set_devices({0});
  ferry::detail::reconcile(config, options);
  CHECK(config.device_maps == options.device_maps);
  CHECK(config.devices == options.devices);
  CHECK(options.devices == std::vector{gpu(0)});
  config.set_device_map("worker1", {{1, 0}});
  expect_error(errc::invalid_argument, "device_maps", [&] { ferry::detail::reconcile(config, options); });
  config.device_maps = options.device_maps;
  config.set_devices({1});
  expect_error(errc::invalid_argument, "devices", [&] { ferry::detail::reconcile(config, options); });
}

namespace {

struct counted_device {};

}  // namespace

}  // namespace device_map_test

template <>
struct ferry::device_traits<device_map_test::counted_device> : ferry::immediate_device {
  static constexpr std::string_view name = "counted";
  static constexpr device_kind kind = static_cast<device_kind>(200);
  static int count() noexcept { return 5; }
  static void* allocate(device, std::size_t, stream_handle) { return nullptr; }
  static void deallocate(device, void*, std::size_t, stream_handle) noexcept {}
};

namespace device_map_test {

TEST_CASE("a process counts its CUDA devices, and those of the kinds that it has registered") {
  ferry::device_counts before = ferry::local_device_counts();
  CHECK(before.at(device_kind::cuda) == ferry::device_traits<ferry::cuda>::count());
  CHECK(before.count(device_kind::cpu) == 0);
  ferry::register_devices<counted_device>();
  before[static_cast<device_kind>(200)] = 5;
  CHECK(ferry::local_device_counts() == before);
  CHECK(device_map{{"counted:4", "cuda:0"}}.inverse() == device_map{{0, device{static_cast<device_kind>(200), 4}}});
}

// ---------------------------------------------------------------- properties

namespace {

device any_device(std::mt19937& random, int count) {
  const int index = std::uniform_int_distribution<int>(-1, count - 1)(random);
  return index < 0 ? host : gpu(index);
}

std::vector<device_pair> any_pairs(std::mt19937& random, int devices, std::size_t most) {
  std::vector<device_pair> result;
  const auto size = std::uniform_int_distribution<std::size_t>(0, most)(random);
  while (result.size() != size) result.emplace_back(any_device(random, devices), any_device(random, devices));
  return result;
}

}  // namespace

TEST_CASE("random lists of pairs are accepted exactly if they are one-to-one, and maps have an inverse") {
  std::mt19937 random(7);
  int taken = 0;
  int with_shared_target = 0;
  int refused = 0;
  for (int round = 0; round != 4000; ++round) {
    const auto pairs = any_pairs(random, 4, 5);
    std::map<device, std::set<device>> forward;
    std::map<device, std::set<device>> backward;
    for (const device_pair& each : pairs) {
      forward[each.from].insert(each.to);
      backward[each.to].insert(each.from);
    }
    const auto single = [](const auto& table) {
      for (const auto& [key, values] : table) {
        if (values.size() != 1) return false;
      }
      return true;
    };
    CAPTURE(round);
    if (!single(forward)) {
      ++refused;
      CHECK_THROWS_AS(device_map{pairs}, ferry::error);
      CHECK_THROWS_AS((void)device_map::merged(pairs), ferry::error);
      continue;
    }
    const device_map merged = device_map::merged(pairs);
    CHECK(merged.size() == forward.size());
    for (const auto& [from, to] : forward) CHECK(*merged.find(from) == *to.begin());
    device_map one_by_one;
    for (const device_pair& each : pairs) one_by_one.merge(device_map{each});
    CHECK(one_by_one == merged);
    CHECK(merged.is_one_to_one() == single(backward));
    if (!single(backward)) {
      ++with_shared_target;
      CHECK_THROWS_AS(device_map{pairs}, ferry::error);
      CHECK_THROWS_AS((void)merged.inverse(), ferry::error);
      continue;
    }
    ++taken;
    const device_map map(pairs);
    CHECK(map == merged);
    const device_map back = map.inverse();
    CHECK(back.size() == map.size());
    for (const device_pair& each : map) CHECK(*back.find(each.to) == each.from);
    CHECK(back.inverse() == map);
  }
  CHECK(taken > 500);
  CHECK(with_shared_target > 300);
  CHECK(refused > 500);
}

}  // namespace device_map_test
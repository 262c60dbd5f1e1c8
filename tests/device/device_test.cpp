#include <ferry/device/device.hpp>

#include <string>

#include <doctest/doctest.h>

#include <ferry/device/traits.hpp>

#include "expect_error.hpp"

using ferry::device;
using ferry::device_kind;
using ferry::errc;

TEST_CASE("a device prints and reads back") {
  CHECK(to_string(device{}) == "cpu");
  CHECK(to_string(device{device_kind::cuda, 1}) == "cuda:1");
  CHECK(ferry::parse_device("cpu") == device{});
  CHECK(ferry::parse_device("cpu:0") == device{});
  CHECK(ferry::parse_device("cuda") == device{device_kind::cuda, 0});
  CHECK(ferry::parse_device("cuda:12") == device{device_kind::cuda, 12});
  CHECK(device{device_kind::cuda, 1} != device{device_kind::cuda, 2});
  CHECK(device{} < device{device_kind::cuda, 0});
}

TEST_CASE("what is no device is refused in words") {
  for (const char* text :
       {"", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda: 1", "cuda:99999999999", ":0"}) {
    expect_error(errc::bad_device, std::string("'") + text + "' is not a device",
                 [&] { (void)ferry::parse_device(text); });
  }
  expect_error(errc::bad_device, "there is one cpu, number 0", [] { (void)ferry::parse_device("cpu:1"); });
}

TEST_CASE("only devices that exist are accepted") {
  ferry::check_device({});
  expect_error(errc::bad_device, "there is no device cpu:3; this process has 1", [] {
    ferry::check_device({device_kind::cpu, 3});
  });
  expect_error(errc::bad_device, "no support for devices of the kind 'unknown' (77)", [] {
    ferry::check_device({static_cast<device_kind>(77), 0});
  });
}

namespace {
struct incomplete {};
struct counted {};
int live_blocks = 0;
}  // namespace

template <>
struct ferry::device_traits<incomplete> {
  static constexpr std::string_view name = "incomplete";
};
template <>
struct ferry::device_traits<counted> {
  static constexpr std::string_view name = "counted";
  static constexpr device_kind kind = device_kind::cpu;
  static int count() noexcept { return 2; }
  static void* allocate(device, std::size_t) { return &++live_blocks; }
  static void deallocate(device, void*, std::size_t) noexcept { --live_blocks; }
};

TEST_CASE("a kind of device is a trait") {
  static_assert(ferry::device_type<ferry::cpu>);
  static_assert(!ferry::device_type<incomplete>);
  static_assert(!ferry::device_type<int>);
  constexpr auto operations = ferry::make_device_operations<counted>();
  CHECK(operations.name == "counted");
  CHECK(operations.count() == 2);
  void* block = operations.allocate({}, 1);
  CHECK(live_blocks == 1);
  operations.deallocate({}, block, 1);
  CHECK(live_blocks == 0);
  CHECK(ferry::operations_of(device_kind::cpu).name == "cpu");
}

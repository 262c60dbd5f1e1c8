#include <ferry/device/device.hpp>

#include <string>

#include <doctest/doctest.h>

#include <ferry/device/traits.hpp>

#include "expect_error.hpp"

namespace device_test {

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

TEST_CASE("an invalid device is rejected with an explanation") {
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
struct namesake {};
struct shouting {};
int live_blocks = 0;

struct counted_memory : ferry::immediate_device {
  static int count() noexcept { return 2; }
  static void* allocate(device, std::size_t, stream_handle) { return &++live_blocks; }
  static void deallocate(device, void*, std::size_t, stream_handle) noexcept { --live_blocks; }
};
}  // namespace

}  // namespace device_test

template <>
struct ferry::device_traits<device_test::incomplete> {
  static constexpr std::string_view name = "incomplete";
};
template <>
struct ferry::device_traits<device_test::counted> : device_test::counted_memory {
  static constexpr std::string_view name = "counted";
  static constexpr device_kind kind = static_cast<device_kind>(140);
};
template <>
struct ferry::device_traits<device_test::namesake> : device_test::counted_memory {
  static constexpr std::string_view name = "counted";
  static constexpr device_kind kind = static_cast<device_kind>(141);
};
template <>
struct ferry::device_traits<device_test::shouting> : device_test::counted_memory {
  static constexpr std::string_view name = "SHOUTING:1";
  static constexpr device_kind kind = static_cast<device_kind>(142);
};

namespace device_test {

TEST_CASE("a kind of device is a trait") {
  static_assert(ferry::device_type<ferry::cpu>);
  static_assert(!ferry::device_type<incomplete>);
  static_assert(!ferry::device_type<int>);
  constexpr auto operations = ferry::make_device_operations<counted>();
  CHECK(operations.name == "counted");
  CHECK(operations.count() == 2);
  CHECK(operations.immediate);
  void* block = operations.allocate({}, 1, nullptr);
  CHECK(live_blocks == 1);
  operations.deallocate({}, block, 1, nullptr);
  CHECK(live_blocks == 0);
  CHECK(ferry::operations_of(device_kind::cpu).name == "cpu");
  CHECK(ferry::operations_of(device_kind::cuda).name == "cuda");
}

TEST_CASE("a kind of device that is registered is found by name and number") {
  const device second{static_cast<device_kind>(140), 1};
  expect_error(errc::bad_device, "'counted' is not a kind of device registered in this program (cpu, cuda",
               [] { (void)ferry::parse_device("counted:1"); });
  CHECK(to_string(second) == "unknown:1");
  ferry::register_devices<counted>();
  ferry::register_devices<counted>();  // may be repeated
  CHECK(ferry::parse_device("counted:1") == second);
  CHECK(to_string(second) == "counted:1");
  CHECK(ferry::operations_of(second.kind).count() == 2);
  ferry::check_device(second);
  expect_error(errc::bad_device, "there is no device counted:2; this process has 2 of the kind 'counted'",
               [] { ferry::check_device(ferry::parse_device("counted:2")); });
  expect_error(errc::invalid_argument,
               "the kind of device 'counted' (141) cannot be registered: this program has 'counted' (140)",
               [] { ferry::register_devices<namesake>(); });
  expect_error(errc::invalid_argument, "'SHOUTING:1' is not a valid name for a kind of device",
               [] { ferry::register_devices<shouting>(); });
}

}  // namespace device_test
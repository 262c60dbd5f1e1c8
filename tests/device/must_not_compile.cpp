// A type that is not a kind of device, or not a stream, is rejected with an explanation. Run by must_not_compile.py.

#include <string_view>

#include <ferry/device/cuda.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>

struct plain {};
struct nameless {};
struct no_handles {};
struct no_memory {};
struct good {};
struct namesake {};
struct low_number {};

struct memory : ferry::immediate_device {
  static int count() noexcept { return 1; }
  static void* allocate(ferry::device, std::size_t, stream_handle) { return nullptr; }
  static void deallocate(ferry::device, void*, std::size_t, stream_handle) noexcept {}
};

template <>
struct ferry::device_traits<nameless> : memory {
  static constexpr device_kind kind = static_cast<device_kind>(200);
};
template <>
struct ferry::device_traits<no_handles> {
  static constexpr std::string_view name = "no_handles";
  static constexpr device_kind kind = static_cast<device_kind>(201);
  static int count() noexcept { return 1; }
};
template <>
struct ferry::device_traits<no_memory> : ferry::immediate_device {
  static constexpr std::string_view name = "no_memory";
  static constexpr device_kind kind = static_cast<device_kind>(202);
  static int count() noexcept { return 1; }
};
template <>
struct ferry::device_traits<good> : memory {
  static constexpr std::string_view name = "good";
  static constexpr device_kind kind = static_cast<device_kind>(203);
};
template <>
struct ferry::device_traits<namesake> : memory {
  static constexpr std::string_view name = "good";
  static constexpr device_kind kind = static_cast<device_kind>(204);
};
template <>
struct ferry::device_traits<low_number> : memory {
  static constexpr std::string_view name = "low_number";
  static constexpr device_kind kind = static_cast<device_kind>(7);
};

void use() {
  ferry::register_devices<good>();
  CUstream_st* handle = nullptr;
  (void)ferry::stream::from_native<ferry::cuda>(handle, 0);
#if CASE == 1  // expect: ferry: this type is no kind of device: specialise ferry::device_traits for it
  ferry::register_devices<plain>();
#endif
#if CASE == 2  // expect: ferry: device_traits of this kind lacks `name`
  ferry::register_devices<nameless>();
#endif
#if CASE == \
    3  // expect: lacks `stream_handle` or `event_handle`, which are pointer types; derive it from ferry::immediate_device
  ferry::register_devices<no_handles>();
#endif
#if CASE == 4  // expect: ferry: device_traits of this kind lacks memory: add static void* allocate(ferry::device
  ferry::register_devices<no_memory>();
#endif
#if CASE == 5  // expect: ferry: two kinds of register_devices have the same name or the same number
  ferry::register_devices<good, namesake>();
#endif
#if CASE == 6  // expect: ferry: the number of a kind of device that is not ferry's own is 128 or more
  ferry::register_devices<low_number>();
#endif
#if CASE == 7  // expect: deleted
  (void)ferry::stream::from_native<ferry::cuda>(nullptr, 0);
#endif
#if CASE == 8  // expect: deleted
  (void)ferry::stream::from_native<ferry::cuda>(0, 0);
#endif
#if CASE == 9  // expect: ::stream
  const ferry::stream stream = nullptr;
#endif
#if CASE == 10  // expect: ::stream
  const ferry::stream stream(0);
#endif
}

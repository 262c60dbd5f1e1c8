#pragma once

// What a kind of device has to offer: the customisation point, its concept, and the table used when the kind is known
// only at run time.

#include <concepts>
#include <cstddef>
#include <string_view>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

/// Tag of the host's processor and memory.
struct cpu {};

/// How memory of a kind of device is had. Undefined: a kind of device is added by specialising it for a tag type with
/// the members that the concept device_type names. All of them are called from any thread.
template <class Tag>
struct device_traits;

/// Whether device_traits<Tag> is complete:
///   static constexpr std::string_view name;             "cpu"
///   static constexpr device_kind kind;
///   static int count() noexcept;                        devices of this kind in this process, 0 if unusable
///   static void* allocate(device, std::size_t bytes);   aligned to at least 64 bytes, uninitialised; nullptr for 0
///   bytes static void deallocate(device, void*, std::size_t bytes) noexcept;   `bytes` as given to allocate
template <class Tag>
concept device_type = requires(device where, void* memory, std::size_t bytes) {
  { device_traits<Tag>::name } -> std::convertible_to<std::string_view>;
  { device_traits<Tag>::kind } -> std::convertible_to<device_kind>;
  { device_traits<Tag>::count() } noexcept -> std::same_as<int>;
  { device_traits<Tag>::allocate(where, bytes) } -> std::same_as<void*>;
  { device_traits<Tag>::deallocate(where, memory, bytes) } noexcept -> std::same_as<void>;
};

template <>
struct device_traits<cpu> {
  static constexpr std::string_view name = "cpu";
  static constexpr device_kind kind = device_kind::cpu;
  static int count() noexcept { return 1; }
  static void* allocate(device where, std::size_t bytes);
  static void deallocate(device where, void* memory, std::size_t bytes) noexcept;
};
static_assert(device_type<cpu>);

/// A device_traits as a value, for code that learns the kind at run time.
struct device_operations {
  std::string_view name;
  int (*count)() noexcept;
  void* (*allocate)(device where, std::size_t bytes);
  void (*deallocate)(device where, void* memory, std::size_t bytes) noexcept;
};

template <class Tag>
constexpr device_operations make_device_operations() noexcept {
  static_assert(device_type<Tag>,
                "device_traits<Tag> is missing or incomplete: specialise it with name, kind, count(), allocate() and "
                "deallocate() as the concept ferry::device_type describes");
  using traits = device_traits<Tag>;
  return {traits::name, &traits::count, &traits::allocate, &traits::deallocate};
}

/// The operations of a kind. Throws errc::bad_device if this build has none of that kind.
[[nodiscard]] const device_operations& operations_of(device_kind kind);

/// Throws errc::bad_device unless the device exists in this process; the text says which ones do.
void check_device(device where);

}  // namespace ferry::inline v0

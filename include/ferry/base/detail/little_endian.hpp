#pragma once

// Fixed-width little-endian numbers in byte sequences.

#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace ferry::inline v0::detail {

static_assert(std::endian::native == std::endian::little,
              "ferry: the wire is little-endian and numbers are copied as they are; this machine is not little-endian");

template <class T>
inline void store_le(std::byte* out, T value) noexcept {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  std::memcpy(out, &value, sizeof value);
}
template <class T>
[[nodiscard]] inline T load_le(const std::byte* in) noexcept {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  T value;
  std::memcpy(&value, in, sizeof value);
  return value;
}

}  // namespace ferry::inline v0::detail

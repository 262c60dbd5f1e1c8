#pragma once

// Arithmetic of kernels: integers wrap, as on the CPU.

#include <type_traits>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

/// a + b * c and a * b with the CPU's results: integers wrap.
template <class T>
FERRY_KERNEL T multiply_add(T a, T b, T c) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) + static_cast<bits>(b) * static_cast<bits>(c));
  } else {
    return a + b * c;
  }
}
template <class T>
FERRY_KERNEL T multiply(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return multiply_add<T>(T{0}, a, b);
  } else {
    return a * b;
  }
}

}  // namespace ferry::inline v0::detail

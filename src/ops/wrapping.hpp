#pragma once

// Arithmetic of elements, for the CPU and for kernels. Signed overflow is undefined, so integers are computed as their unsigned types:
// they wrap.

#include <type_traits>

#include "../tensor/kernels.hpp"

namespace ferry::inline v0::detail {

template <class T>
FERRY_KERNEL T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) + static_cast<bits>(b));
  } else {
    return a + b;
  }
}
template <class T>
FERRY_KERNEL T times(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) * static_cast<bits>(b));
  } else {
    return a * b;
  }
}

}  // namespace ferry::inline v0::detail

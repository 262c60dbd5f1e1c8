#pragma once

// Conversion between element types through the widest type of each family: i64, f64, c128. Each of these holds every
// element type of its family exactly, so a conversion is a load and a store instead of fourteen times fourteen kernels.
// All of it is constexpr, so that device kernels can use it.

#include <algorithm>
#include <complex>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <ferry/tensor/visit.hpp>

namespace ferry::inline v0::detail {

using complex128 = std::complex<double>;

template <class T>
inline constexpr bool is_complex_v = std::is_same_v<T, std::complex<float>> || std::is_same_v<T, complex128>;

template <class T>
using wide =
    std::conditional_t<is_complex_v<T>, complex128, std::conditional_t<std::is_integral_v<T>, std::int64_t, double>>;

template <class T>
constexpr wide<T> widen(T value) {
  return static_cast<wide<T>>(value);
}
template <>
constexpr complex128 widen<std::complex<float>>(std::complex<float> value) {
  return {value.real(), value.imag()};
}

/// The rules of tensor::to.
template <class T, class Wide>
constexpr T narrow_to(Wide value) {
  if constexpr (is_complex_v<T>) {
    using part = typename T::value_type;
    if constexpr (is_complex_v<Wide>) {
      return {static_cast<part>(value.real()), static_cast<part>(value.imag())};
    } else {
      return {static_cast<part>(value), part{0}};
    }
  } else if constexpr (is_complex_v<Wide>) {
    if constexpr (std::is_same_v<T, bool>) return value != Wide{};
    return narrow_to<T>(value.real());
  } else if constexpr (std::is_same_v<T, bool>) {
    return value != Wide{0};
  } else if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Wide>) {
    if (value != value) return 0;  // NaN
    // The bounds of i64 are not doubles; the powers of two beyond them are.
    constexpr auto low = static_cast<double>(std::numeric_limits<T>::min());
    constexpr auto high = static_cast<double>(std::numeric_limits<T>::max());
    if (value <= low) return std::numeric_limits<T>::min();
    if (value >= high) return std::numeric_limits<T>::max();
    return static_cast<T>(value);
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace ferry::inline v0::detail

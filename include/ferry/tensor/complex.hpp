#pragma once

// std::complex as an element type; apart from dtype.hpp because <complex> is a heavy header.

#include <complex>

#include <ferry/tensor/dtype.hpp>

namespace ferry::inline v0 {

template <>
struct element_traits<std::complex<float>> {
  static constexpr dtype type = dtype::c64;
};
template <>
struct element_traits<std::complex<double>> {
  static constexpr dtype type = dtype::c128;
};

}  // namespace ferry::inline v0

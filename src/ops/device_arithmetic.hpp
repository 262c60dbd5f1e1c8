#pragma once

// Arithmetic on devices that have kernels, on the current stream of the tensors' common device, which is recorded as a user
// of them. Throws errc::device_failure.

#include <type_traits>

#include <ferry/tensor/tensor.hpp>

#include "kernels.hpp"

namespace ferry::inline v0::detail {

template <class T>
kernel_number as_kernel_number(T value) {
  if constexpr (std::is_integral_v<T>) {
    return {value, 0};
  } else {
    return {0, static_cast<double>(value)};
  }
}

/// to = a + factor * b, or a * b; shapes and dtypes are the same.
void combine_by_kernel(const tensor& to, const tensor& a, const tensor& b, kernel_operation how, kernel_number factor);
/// to = a + value, or a * value.
void combine_by_kernel(const tensor& to, const tensor& a, kernel_operation how, kernel_number value);
/// Each element of `to` = the sum over `reduced`, moved to the element of `first` of that index. `reduced` begins at the first
/// element of `first`.
void sum_by_kernel(const tensor& to, const tensor& first, const tensor& reduced);

}  // namespace ferry::inline v0::detail

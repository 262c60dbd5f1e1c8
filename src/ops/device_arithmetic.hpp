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

/// to = f(a); the kernels of function_kernels.hpp.
void function_by_kernel(const tensor& to, const tensor& a, unary_function f, const function_numbers& with);
void function_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& from, unary_function f,
                                 const function_numbers& with);
void function_by_kernel(const tensor& to, const tensor& a, const tensor& b, binary_function f);
void function_gradient_by_kernel(const tensor& to, const tensor& gradient, const tensor& a, const tensor& b,
                                 binary_function f, std::size_t input);
void compare_by_kernel(const tensor& to, const tensor& a, const tensor& b, comparison how);
void choose_by_kernel(const tensor& to, const tensor& condition, const tensor& a, const tensor& b);

}  // namespace ferry::inline v0::detail

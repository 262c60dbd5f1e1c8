#pragma once

// The product of a layer: a matrix of weights, and a bias.

#include <cstddef>
#include <span>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// x * weight^T + bias: x [..., in], weight [out, in], bias [out] or undefined -> [..., out], of one dtype of i32, i64,
/// f32 or f64; integers wrap. No copies are made of operands that are contiguous or transposed. Throws errc::bad_shape,
/// errc::bad_dtype, errc::bad_device, and errc::missing_environment if FERRY_BLAS names a library that cannot be used.
/// Thread-safe, as long as nothing writes the inputs.
[[nodiscard]] tensor linear(const tensor& x, const tensor& weight, const tensor& bias = {});

namespace op {

/// Its inputs are x and weight, or x, weight and bias.
struct linear {
  static constexpr std::string_view name = "linear";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = any_number;
  static constexpr operation_needs needs{
      .elements = element_set::arithmetic, .devices = device_set::with_kernels, .alike = true};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, std::span<const tensor> inputs);
};

}  // namespace op
}  // namespace ferry::inline v0

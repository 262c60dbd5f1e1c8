#pragma once

// The product of matrices.

#include <cstddef>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The product of two matrices on the CPU, [n, k] x [k, m] -> [n, m], of i32, i64, f32 or f64; integers wrap. Throws
/// errc::bad_shape, errc::bad_dtype for other or different dtypes, errc::bad_device.
[[nodiscard]] tensor matmul(const tensor& a, const tensor& b);

namespace op {

struct matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{
      .elements = element_set::arithmetic, .devices = device_set::cpu, .alike = true};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a, const tensor& b);
};

}  // namespace op
}  // namespace ferry::inline v0

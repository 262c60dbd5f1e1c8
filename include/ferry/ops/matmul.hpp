#pragma once

// The product of matrices.

#include <cstddef>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The product of matrices, of i32, i64, f32 or f64; integers wrap. On CUDA devices by cuBLAS, if it is installed, else by a kernel.
///
///   [n, k] x [k, m]            -> [n, m]
///   [..., n, k] x [..., k, m]  -> [..., n, m]; the leading axes broadcast
///   [k] x [..., k, m]          -> [..., m]
///   [..., n, k] x [k]          -> [..., n]
///   [k] x [k]                  -> a tensor without axes
///
/// No copies are made of matrices whose rows or columns lie densely. Throws errc::bad_shape, errc::bad_dtype for other or
/// different dtypes, errc::bad_device, and errc::missing_environment if FERRY_BLAS names a library that cannot be used.
/// Thread-safe, as long as nothing writes the inputs.
[[nodiscard]] tensor matmul(const tensor& a, const tensor& b);

namespace op {

struct matmul {
  static constexpr std::string_view name = "matmul";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{
      .elements = element_set::arithmetic, .devices = device_set::with_kernels, .alike = true};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& a, const tensor& b);
};

}  // namespace op
}  // namespace ferry::inline v0

#pragma once

// Sums and means of a tensor's elements.

#include <cstddef>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

// Of tensors on the CPU and on CUDA devices: f32 and f64 in their dtype (computed in f64), i32 and i64 as i64; integers wrap. They
// throw errc::bad_dtype for other dtypes, errc::bad_device.

/// The sum of all elements, as a tensor without axes.
[[nodiscard]] tensor sum(const tensor& t);
/// Over these axes, which are removed, or kept with size 1. Without axes: the elements themselves. Throws errc::bad_shape for an
/// axis that does not exist or comes twice.
[[nodiscard]] tensor sum(const tensor& t, const dims& axes, bool keep = false);

/// The same for means, of f32 and f64; NaN for no elements.
[[nodiscard]] tensor mean(const tensor& t);
[[nodiscard]] tensor mean(const tensor& t, const dims& axes, bool keep = false);

namespace op {

struct sum {
  static constexpr std::string_view name = "sum";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = element_set::arithmetic, .devices = device_set::with_kernels};
  struct parameters {
    dims axes;
    bool keep = false;  // with size 1
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

}  // namespace op
}  // namespace ferry::inline v0

#pragma once

// The largest and smallest elements along an axis, and where they are; of i32, i64, f32 and f64, on the CPU and, but for topk, on CUDA
// devices in the order of the calling thread's current stream. A NaN counts as the extreme; of equal elements, the first one. Axes
// count from the end if negative.
//
// Errors of all: errc::bad_shape for an axis that does not exist or has no elements, errc::bad_dtype, errc::bad_device.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// Elements, and their indices along the axis, of i64.
struct indexed_values {
  tensor values;
  tensor indices;
};

/// The axis is removed, or kept with size 1.
[[nodiscard]] indexed_values max(const tensor& t, std::int64_t axis, bool keep = false);
[[nodiscard]] indexed_values min(const tensor& t, std::int64_t axis, bool keep = false);
[[nodiscard]] tensor argmax(const tensor& t, std::int64_t axis, bool keep = false);
[[nodiscard]] tensor argmin(const tensor& t, std::int64_t axis, bool keep = false);
/// Of all elements, as a tensor without axes.
[[nodiscard]] tensor max(const tensor& t);
[[nodiscard]] tensor min(const tensor& t);
/// The `count` largest along the axis, in descending order. Throws errc::invalid_argument if there are not as many. CPU.
[[nodiscard]] indexed_values topk(const tensor& t, std::int64_t count, std::int64_t axis = -1);

namespace op {

/// Values and indices; the axis is kept with size 1.
struct extreme {
  static constexpr std::string_view name = "extreme";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = element_set::arithmetic, .devices = device_set::with_kernels};
  struct parameters {
    std::int64_t axis = 0;
    bool largest = true;
  };

 private:
  friend struct ferry::operation_access;
  static std::array<tensor, 2> compute(const parameters& with, const tensor& t);
};

struct topk {
  static constexpr std::string_view name = "topk";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = element_set::arithmetic, .devices = device_set::cpu};
  struct parameters {
    std::int64_t axis = 0;
    std::int64_t count = 1;
  };

 private:
  friend struct ferry::operation_access;
  static std::array<tensor, 2> compute(const parameters& with, const tensor& t);
};

}  // namespace op
}  // namespace ferry::inline v0

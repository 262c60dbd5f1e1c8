#pragma once

// The sum of a tensor's elements.

#include <cstddef>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The sum of all elements of a CPU tensor, as a tensor without axes: f32 and f64 in their dtype (computed in f64), i32
/// and i64 as i64; integers wrap. Throws errc::bad_dtype for other dtypes, errc::bad_device.
[[nodiscard]] tensor sum(const tensor& t);

namespace op {

struct sum {
  static constexpr std::string_view name = "sum";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = element_set::arithmetic, .devices = device_set::cpu};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

}  // namespace op
}  // namespace ferry::inline v0

#pragma once

// Comparisons of elements, which have no gradients, and choices by what they find; on the CPU and on CUDA devices, in the order of the
// calling thread's current stream, over shapes that broadcast. Results are new contiguous tensors.
//
// Errors of all: errc::bad_shape, errc::bad_dtype, errc::bad_device, and what the hooks of a tensor throw.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

// Of i32, i64, f32 and f64; the result is of bool. A NaN is unequal to everything.

[[nodiscard]] tensor eq(const tensor& a, const tensor& b);
[[nodiscard]] tensor ne(const tensor& a, const tensor& b);
[[nodiscard]] tensor lt(const tensor& a, const tensor& b);
[[nodiscard]] tensor le(const tensor& a, const tensor& b);
[[nodiscard]] tensor gt(const tensor& a, const tensor& b);
[[nodiscard]] tensor ge(const tensor& a, const tensor& b);
[[nodiscard]] tensor eq(const tensor& a, const scalar& b);
[[nodiscard]] tensor ne(const tensor& a, const scalar& b);
[[nodiscard]] tensor lt(const tensor& a, const scalar& b);
[[nodiscard]] tensor le(const tensor& a, const scalar& b);
[[nodiscard]] tensor gt(const tensor& a, const scalar& b);
[[nodiscard]] tensor ge(const tensor& a, const scalar& b);

/// The elements of `a` where the condition, of bool, holds, else those of `b`. `a` and `b` are of one dtype, any.
[[nodiscard]] tensor where(const tensor& condition, const tensor& a, const tensor& b);
/// `t` with the value where the mask, of bool, holds; of i32, i64, f32 and f64. Throws errc::bad_dtype for a real value and integers.
[[nodiscard]] tensor masked_fill(const tensor& t, const tensor& mask, const scalar& value);

namespace detail {

enum class comparison : std::uint8_t { eq, ne, lt, le, gt, ge };

tensor compare(comparison how, const tensor& a, const tensor& b);

template <comparison How>
struct comparison_descriptor {
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{
      .elements = element_set::arithmetic, .devices = device_set::with_kernels, .alike = true};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters&, const tensor& a, const tensor& b) { return compare(How, a, b); }
};

}  // namespace detail

namespace op {

struct eq : detail::comparison_descriptor<detail::comparison::eq> {
  static constexpr std::string_view name = "eq";
};
struct ne : detail::comparison_descriptor<detail::comparison::ne> {
  static constexpr std::string_view name = "ne";
};
struct lt : detail::comparison_descriptor<detail::comparison::lt> {
  static constexpr std::string_view name = "lt";
};
struct le : detail::comparison_descriptor<detail::comparison::le> {
  static constexpr std::string_view name = "le";
};
struct gt : detail::comparison_descriptor<detail::comparison::gt> {
  static constexpr std::string_view name = "gt";
};
struct ge : detail::comparison_descriptor<detail::comparison::ge> {
  static constexpr std::string_view name = "ge";
};

struct where {
  static constexpr std::string_view name = "where";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 3;
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& condition, const tensor& a, const tensor& b);
};

struct masked_fill {
  static constexpr std::string_view name = "masked_fill";
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{.devices = device_set::with_kernels};
  struct parameters {
    scalar value;
  };

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t, const tensor& mask);
};

}  // namespace op
}  // namespace ferry::inline v0

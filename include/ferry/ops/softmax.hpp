#pragma once

// Normalised exponentials along an axis, of f32 and f64, on the CPU and on CUDA devices in the order of the calling thread's current
// stream. The largest element is subtracted first, so that nothing overflows. Axes count from the end if negative.
//
// Errors of all: errc::bad_shape for an axis that does not exist, errc::bad_dtype, errc::bad_device.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// exp(t) / sum(exp(t)), of the shape of `t`.
[[nodiscard]] tensor softmax(const tensor& t, std::int64_t axis);
/// log(softmax(t)), of the shape of `t`.
[[nodiscard]] tensor log_softmax(const tensor& t, std::int64_t axis);
/// log(sum(exp(t))); the axis is removed, or kept with size 1. -inf along an axis of size 0.
[[nodiscard]] tensor logsumexp(const tensor& t, std::int64_t axis, bool keep = false);

namespace detail {

struct axis_descriptor {
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = element_set::floating, .devices = device_set::with_kernels};
  struct parameters {
    std::int64_t axis = 0;
  };
};

/// The gradient of softmax or, `logarithm`, of log_softmax, whose result is `result`.
tensor softmax_gradient(const tensor& gradient, const tensor& result, std::int64_t axis, bool logarithm);

}  // namespace detail

namespace op {

struct softmax : detail::axis_descriptor {
  static constexpr std::string_view name = "softmax";

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

struct log_softmax : detail::axis_descriptor {
  static constexpr std::string_view name = "log_softmax";

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

/// The axis is kept with size 1.
struct logsumexp : detail::axis_descriptor {
  static constexpr std::string_view name = "logsumexp";

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t);
};

}  // namespace op
}  // namespace ferry::inline v0

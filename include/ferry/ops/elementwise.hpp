#pragma once

// Functions of elements, one by one; on the CPU and on CUDA devices, in the order of the calling thread's current stream. Results are
// new contiguous tensors. NaN passes through all of them.
//
// Errors of all: errc::bad_dtype (nothing is promoted: convert with to()), errc::bad_shape where two tensors do not broadcast,
// errc::bad_device, and what the hooks of a tensor throw (ferry::tensor_hooks).

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <ferry/tensor/operation.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

// Of i32, i64, f32 and f64; integers wrap.

[[nodiscard]] tensor neg(const tensor& t);
[[nodiscard]] tensor abs(const tensor& t);
/// max(t, 0)
[[nodiscard]] tensor relu(const tensor& t);
/// Of tensors that broadcast; NaN if one of the elements is.
[[nodiscard]] tensor minimum(const tensor& a, const tensor& b);
[[nodiscard]] tensor maximum(const tensor& a, const tensor& b);

// Of f32 and f64.

[[nodiscard]] tensor exp(const tensor& t);
/// The natural logarithm.
[[nodiscard]] tensor log(const tensor& t);
[[nodiscard]] tensor sqrt(const tensor& t);
[[nodiscard]] tensor pow(const tensor& t, double exponent);
/// Of tensors that broadcast.
[[nodiscard]] tensor pow(const tensor& t, const tensor& exponent);
/// Of tensors that broadcast.
[[nodiscard]] tensor div(const tensor& a, const tensor& b);
[[nodiscard]] tensor div(const tensor& a, double b);
/// min(max(t, low), high)
[[nodiscard]] tensor clamp(const tensor& t, double low, double high = std::numeric_limits<double>::infinity());
[[nodiscard]] tensor tanh(const tensor& t);
/// 1 / (1 + exp(-t))
[[nodiscard]] tensor sigmoid(const tensor& t);
/// t * sigmoid(t)
[[nodiscard]] tensor silu(const tensor& t);
/// log(1 + exp(beta * t)) / beta; t itself where beta * t is above the threshold.
[[nodiscard]] tensor softplus(const tensor& t, double beta = 1, double threshold = 20);
/// t * P(X < t) for a standard normal X.
[[nodiscard]] tensor gelu(const tensor& t);
/// The approximation t * (1 + tanh(sqrt(2 / pi) * (t + 0.044715 * t^3))) / 2 (D. Hendrycks and K. Gimpel, "Gaussian Error Linear
/// Units", 2016).
[[nodiscard]] tensor gelu_tanh(const tensor& t);

[[nodiscard]] inline tensor operator-(const tensor& t) { return neg(t); }
[[nodiscard]] inline tensor operator/(const tensor& a, const tensor& b) { return div(a, b); }
[[nodiscard]] inline tensor operator/(const tensor& a, double b) { return div(a, b); }

namespace detail {

enum class unary_function : std::uint8_t {
  neg,
  abs,
  relu,
  exp,
  log,
  sqrt,
  power,   // x ^ first
  divide,  // x / first
  clamp,   // to first .. second
  tanh,
  sigmoid,
  silu,
  softplus,  // beta, threshold
  gelu,
  gelu_tanh,
};
enum class binary_function : std::uint8_t {
  divide,
  power,
  minimum,
  maximum,
  bce_with_logits,  // of a logit and a target
};

/// The parameters of a function.
struct function_numbers {
  double first = 0;
  double second = 0;
};

/// What the slope of a function is computed from besides its parameters.
enum class slope_source : std::uint8_t { nothing, input, result };
constexpr slope_source slope_source_of(unary_function f) noexcept {
  switch (f) {
    case unary_function::neg:
    case unary_function::divide: return slope_source::nothing;
    case unary_function::relu:
    case unary_function::exp:
    case unary_function::sqrt:
    case unary_function::tanh:
    case unary_function::sigmoid: return slope_source::result;
    default: return slope_source::input;
  }
}

// The elements of each operation are of its descriptor's set.

tensor apply_function(unary_function f, const function_numbers& with, const tensor& t);
/// gradient * the slope; `from` is what slope_source_of() says, or anything of the shape.
tensor function_gradient(unary_function f, const function_numbers& with, const tensor& gradient, const tensor& from);
tensor apply_function(binary_function f, const tensor& a, const tensor& b);
/// gradient * the slope in the direction of one input, of the shape that all three broadcast to.
tensor function_gradient(binary_function f, std::size_t input, const tensor& gradient, const tensor& a,
                         const tensor& b);

struct no_numbers {
  [[nodiscard]] function_numbers numbers() const noexcept { return {}; }
};

/// A function of one tensor. Parameters has numbers().
template <unary_function F, class Parameters = no_numbers, element_set Elements = element_set::floating>
struct unary_descriptor {
  static constexpr unary_function function = F;
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 1;
  static constexpr operation_needs needs{.elements = Elements, .devices = device_set::with_kernels};
  using parameters = Parameters;

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters& with, const tensor& t) { return apply_function(F, with.numbers(), t); }
};

/// A function of two tensors.
template <binary_function F, element_set Elements = element_set::floating>
struct binary_descriptor {
  static constexpr binary_function function = F;
  static constexpr operation_kind kind = operation_kind::new_result;
  static constexpr std::size_t inputs = 2;
  static constexpr operation_needs needs{.elements = Elements, .devices = device_set::with_kernels, .alike = true};
  struct parameters {};

 private:
  friend struct ferry::operation_access;
  static tensor compute(const parameters&, const tensor& a, const tensor& b) { return apply_function(F, a, b); }
};

/// One number, called `value`.
struct one_number {
  double value = 0;
  [[nodiscard]] function_numbers numbers() const noexcept { return {value, 0}; }
};
struct clamp_numbers {
  double low = 0;
  double high = 0;
  [[nodiscard]] function_numbers numbers() const noexcept { return {low, high}; }
};
struct softplus_numbers {
  double beta = 1;
  double threshold = 20;
  [[nodiscard]] function_numbers numbers() const noexcept { return {beta, threshold}; }
};

}  // namespace detail

namespace op {

struct neg : detail::unary_descriptor<detail::unary_function::neg, detail::no_numbers, element_set::arithmetic> {
  static constexpr std::string_view name = "neg";
};
struct abs : detail::unary_descriptor<detail::unary_function::abs, detail::no_numbers, element_set::arithmetic> {
  static constexpr std::string_view name = "abs";
};
struct relu : detail::unary_descriptor<detail::unary_function::relu, detail::no_numbers, element_set::arithmetic> {
  static constexpr std::string_view name = "relu";
};
struct minimum : detail::binary_descriptor<detail::binary_function::minimum, element_set::arithmetic> {
  static constexpr std::string_view name = "minimum";
};
struct maximum : detail::binary_descriptor<detail::binary_function::maximum, element_set::arithmetic> {
  static constexpr std::string_view name = "maximum";
};
struct exp : detail::unary_descriptor<detail::unary_function::exp> {
  static constexpr std::string_view name = "exp";
};
struct log : detail::unary_descriptor<detail::unary_function::log> {
  static constexpr std::string_view name = "log";
};
struct sqrt : detail::unary_descriptor<detail::unary_function::sqrt> {
  static constexpr std::string_view name = "sqrt";
};
struct pow_scalar : detail::unary_descriptor<detail::unary_function::power, detail::one_number> {
  static constexpr std::string_view name = "pow_scalar";
};
struct pow : detail::binary_descriptor<detail::binary_function::power> {
  static constexpr std::string_view name = "pow";
};
struct div : detail::binary_descriptor<detail::binary_function::divide> {
  static constexpr std::string_view name = "div";
};
struct div_scalar : detail::unary_descriptor<detail::unary_function::divide, detail::one_number> {
  static constexpr std::string_view name = "div_scalar";
};
struct clamp : detail::unary_descriptor<detail::unary_function::clamp, detail::clamp_numbers> {
  static constexpr std::string_view name = "clamp";
};
struct tanh : detail::unary_descriptor<detail::unary_function::tanh> {
  static constexpr std::string_view name = "tanh";
};
struct sigmoid : detail::unary_descriptor<detail::unary_function::sigmoid> {
  static constexpr std::string_view name = "sigmoid";
};
struct silu : detail::unary_descriptor<detail::unary_function::silu> {
  static constexpr std::string_view name = "silu";
};
struct softplus : detail::unary_descriptor<detail::unary_function::softplus, detail::softplus_numbers> {
  static constexpr std::string_view name = "softplus";
};
struct gelu : detail::unary_descriptor<detail::unary_function::gelu> {
  static constexpr std::string_view name = "gelu";
};
struct gelu_tanh : detail::unary_descriptor<detail::unary_function::gelu_tanh> {
  static constexpr std::string_view name = "gelu_tanh";
};

}  // namespace op
}  // namespace ferry::inline v0

#include <ferry/ops/elementwise.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/tensor/factories.hpp>

#include "cpu_kernels.hpp"
#include "device_arithmetic.hpp"
#include "functions.hpp"
#include "loops.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Those that the CPU's kernels have in vectors.
std::optional<array_function> array_function_of(unary_function f) noexcept {
  switch (f) {
    case unary_function::exp: return array_function::exp;
    case unary_function::log: return array_function::log;
    case unary_function::tanh: return array_function::tanh;
    case unary_function::sigmoid: return array_function::sigmoid;
    default: return {};
  }
}

}  // namespace

tensor apply_function(unary_function f, const function_numbers& with, const tensor& t) {
  tensor result = empty_like(t);
  if (!t.device().is_cpu()) {
    function_by_kernel(result, t, f, with);
    return result;
  }
  if (const auto vectorised = array_function_of(f)) {
    const tensor dense = t.contiguous();  // a strided tensor has the values of a contiguous one
    const cpu_kernels& kernels = cpu_kernels_in_use();
    if (t.dtype() == dtype::f32) {
      kernels.array_f32(*vectorised, dense.data<float>(), result.data<float>(), t.numel());
    } else {
      kernels.array_f64(*vectorised, dense.data<double>(), result.data<double>(), t.numel());
    }
    return result;
  }
  visit_arithmetic(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T first = static_cast<T>(with.first);
    const T second = static_cast<T>(with.second);
    visit_function(f, [&](auto constant) {
      constexpr unary_function function = decltype(constant)::value;
      if constexpr (!std::is_integral_v<T> || for_integers(function))
        each_element<T>(result, t, [=](T x) { return function_value<function>(x, first, second); });
    });
  });
  return result;
}

tensor function_gradient(unary_function f, const function_numbers& with, const tensor& gradient, const tensor& from) {
  tensor result = empty_like(gradient);
  if (!gradient.device().is_cpu()) {
    function_gradient_by_kernel(result, gradient, from, f, with);
    return result;
  }
  visit_floating(gradient.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T first = static_cast<T>(with.first);
    const T second = static_cast<T>(with.second);
    visit_function(f, [&](auto constant) {
      constexpr unary_function function = decltype(constant)::value;
      each_pair<T>(result, gradient, from,
                   [=](T g, T x) { return gradient_times(g, function_slope<function>(x, first, second)); });
    });
  });
  return result;
}

tensor apply_function(binary_function f, const tensor& a, const tensor& b) {
  const dims shape = broadcast_shapes(a.shape(), b.shape());
  tensor result = empty(shape, a.dtype(), a.device());
  const tensor left = expanded(a, shape);
  const tensor right = expanded(b, shape);
  if (!a.device().is_cpu()) {
    function_by_kernel(result, left, right, f);
    return result;
  }
  visit_arithmetic(a.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_function(f, [&](auto constant) {
      constexpr binary_function function = decltype(constant)::value;
      if constexpr (!std::is_integral_v<T> || for_integers(function))
        each_pair<T>(result, left, right, [](T x, T y) { return function_value<function>(x, y); });
    });
  });
  return result;
}

tensor function_gradient(binary_function f, std::size_t input, const tensor& gradient, const tensor& a,
                         const tensor& b) {
  const dims& shape = gradient.shape();
  tensor result = empty_like(gradient);
  const tensor left = expanded(a, shape);
  const tensor right = expanded(b, shape);
  if (!gradient.device().is_cpu()) {
    function_gradient_by_kernel(result, gradient, left, right, f, input);
    return result;
  }
  visit_floating(gradient.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    visit_function(f, [&](auto constant) {
      constexpr binary_function function = decltype(constant)::value;
      if (input == 0) {
        each_triple<T>(result, gradient, left, right,
                       [](T g, T x, T y) { return gradient_times(g, function_slope<function, 0>(x, y)); });
      } else {
        each_triple<T>(result, gradient, left, right,
                       [](T g, T x, T y) { return gradient_times(g, function_slope<function, 1>(x, y)); });
      }
    });
  });
  return result;
}

}  // namespace detail

tensor neg(const tensor& t) { return run_operation<op::neg>({}, t); }
tensor abs(const tensor& t) { return run_operation<op::abs>({}, t); }
tensor relu(const tensor& t) { return run_operation<op::relu>({}, t); }
tensor minimum(const tensor& a, const tensor& b) { return run_operation<op::minimum>({}, a, b); }
tensor maximum(const tensor& a, const tensor& b) { return run_operation<op::maximum>({}, a, b); }
tensor exp(const tensor& t) { return run_operation<op::exp>({}, t); }
tensor log(const tensor& t) { return run_operation<op::log>({}, t); }
tensor sqrt(const tensor& t) { return run_operation<op::sqrt>({}, t); }
tensor pow(const tensor& t, double exponent) { return run_operation<op::pow_scalar>({exponent}, t); }
tensor pow(const tensor& t, const tensor& exponent) { return run_operation<op::pow>({}, t, exponent); }
tensor div(const tensor& a, const tensor& b) { return run_operation<op::div>({}, a, b); }
tensor div(const tensor& a, double b) { return run_operation<op::div_scalar>({b}, a); }
tensor clamp(const tensor& t, double low, double high) {
  if (std::isnan(low) || std::isnan(high))
    throw_error(errc::invalid_argument, fmt::format("clamp between {} and {}: a bound is not a number", low, high));
  return run_operation<op::clamp>({low, high}, t);
}
tensor tanh(const tensor& t) { return run_operation<op::tanh>({}, t); }
tensor sigmoid(const tensor& t) { return run_operation<op::sigmoid>({}, t); }
tensor silu(const tensor& t) { return run_operation<op::silu>({}, t); }
tensor softplus(const tensor& t, double beta, double threshold) {
  return run_operation<op::softplus>({beta, threshold}, t);
}
tensor gelu(const tensor& t) { return run_operation<op::gelu>({}, t); }
tensor gelu_tanh(const tensor& t) { return run_operation<op::gelu_tanh>({}, t); }

}  // namespace ferry::inline v0

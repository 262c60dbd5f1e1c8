#pragma once

// Of arithmetic. In place, the gradient of the target is that of its old value, so that the formulas are the same.

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/arithmetic.hpp>

namespace ferry::inline v0 {
namespace detail {

struct add_derivative {
  static constexpr derivative_keeps keeps{};
  template <class Parameters>
  static std::array<tensor, 2> backward(const Parameters& with, const backward_run& run, const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }),
            run.fit(1, [&] { return with.alpha.real() == 1 ? gradient : mul(gradient, with.alpha); })};
  }
};

struct sub_derivative {
  static constexpr derivative_keeps keeps{};
  template <class Parameters>
  static std::array<tensor, 2> backward(const Parameters& with, const backward_run& run, const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }), run.fit(1, [&] { return mul(gradient, -with.alpha.real()); })};
  }
};

struct mul_derivative {
  static constexpr derivative_keeps keeps{.inputs = true};
  template <class Parameters>
  static std::array<tensor, 2> backward(const Parameters&, const backward_run& run, const tensor& gradient) {
    return {run.fit(0, [&] { return mul(gradient, run.input(1)); }),
            run.fit(1, [&] { return mul(gradient, run.input(0)); })};
  }
};

struct mul_scalar_derivative {
  static constexpr derivative_keeps keeps{};
  template <class Parameters>
  static std::array<tensor, 1> backward(const Parameters& with, const backward_run&, const tensor& gradient) {
    return {mul(gradient, with.value)};
  }
};

}  // namespace detail

template <>
struct derivative<op::add> : detail::add_derivative {};
template <>
struct derivative<op::add_> : detail::add_derivative {};
template <>
struct derivative<op::sub> : detail::sub_derivative {};
template <>
struct derivative<op::sub_> : detail::sub_derivative {};
template <>
struct derivative<op::mul> : detail::mul_derivative {};
template <>
struct derivative<op::mul_> : detail::mul_derivative {};
template <>
struct derivative<op::add_scalar> : detail::passed_on_derivative {};
template <>
struct derivative<op::add_scalar_> : detail::passed_on_derivative {};
template <>
struct derivative<op::mul_scalar> : detail::mul_scalar_derivative {};
template <>
struct derivative<op::mul_scalar_> : detail::mul_scalar_derivative {};

}  // namespace ferry::inline v0

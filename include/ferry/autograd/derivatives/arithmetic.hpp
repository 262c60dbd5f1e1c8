#pragma once

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/arithmetic.hpp>

namespace ferry::inline v0 {

template <>
struct derivative<op::add> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 2> backward(const op::add::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }), run.fit(1, [&] { return scaled(gradient, with.alpha); })};
  }
  static tensor scaled(const tensor& gradient, const scalar& by) {
    return by.real() == 1 ? gradient : mul(gradient, by);
  }
};

template <>
struct derivative<op::sub> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 2> backward(const op::sub::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }), run.fit(1, [&] { return mul(gradient, -with.alpha.real()); })};
  }
};

template <>
struct derivative<op::mul> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 2> backward(const op::mul::parameters&, const backward_run& run, const tensor& gradient) {
    return {run.fit(0, [&] { return mul(gradient, run.input(1)); }),
            run.fit(1, [&] { return mul(gradient, run.input(0)); })};
  }
};

template <>
struct derivative<op::add_scalar> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::add_scalar::parameters&, const backward_run&,
                                        const tensor& gradient) {
    return {gradient};
  }
};

template <>
struct derivative<op::mul_scalar> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::mul_scalar::parameters& with, const backward_run&,
                                        const tensor& gradient) {
    return {mul(gradient, with.value)};
  }
};

// In place: the gradient of the target is that of its old value.

template <>
struct derivative<op::add_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 2> backward(const op::add_::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }),
            run.fit(1, [&] { return derivative<op::add>::scaled(gradient, with.alpha); })};
  }
};

template <>
struct derivative<op::sub_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 2> backward(const op::sub_::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; }), run.fit(1, [&] { return mul(gradient, -with.alpha.real()); })};
  }
};

template <>
struct derivative<op::mul_> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 2> backward(const op::mul_::parameters&, const backward_run& run, const tensor& gradient) {
    return {run.fit(0, [&] { return mul(gradient, run.input(1)); }),
            run.fit(1, [&] { return mul(gradient, run.input(0)); })};
  }
};

template <>
struct derivative<op::add_scalar_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::add_scalar_::parameters&, const backward_run&,
                                        const tensor& gradient) {
    return {gradient};
  }
};

template <>
struct derivative<op::mul_scalar_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::mul_scalar_::parameters& with, const backward_run&,
                                        const tensor& gradient) {
    return {mul(gradient, with.value)};
  }
};

}  // namespace ferry::inline v0

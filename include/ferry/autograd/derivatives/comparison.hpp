#pragma once

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/comparison.hpp>
#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0 {

template <>
struct derivative<op::eq> : no_derivative {};
template <>
struct derivative<op::ne> : no_derivative {};
template <>
struct derivative<op::lt> : no_derivative {};
template <>
struct derivative<op::le> : no_derivative {};
template <>
struct derivative<op::gt> : no_derivative {};
template <>
struct derivative<op::ge> : no_derivative {};

template <>
struct derivative<op::where> {
  static constexpr derivative_keeps keeps{.inputs = true, .which = 0b001};
  static std::array<tensor, 3> backward(const op::where::parameters&, const backward_run& run, const tensor& gradient) {
    const auto zero = [](const tensor& like) { return zeros({}, like.dtype(), like.device()); };
    return {tensor(), run.fit(1, [&] { return where(run.input(0), gradient, zero(gradient)); }),
            run.fit(2, [&] { return where(run.input(0), zero(gradient), gradient); })};
  }
};

template <>
struct derivative<op::masked_fill> {
  static constexpr derivative_keeps keeps{.inputs = true, .which = 0b10};
  static std::array<tensor, 2> backward(const op::masked_fill::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return masked_fill(gradient, run.input(1), 0); }), tensor()};
  }
};

}  // namespace ferry::inline v0

#pragma once

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/ops/softmax.hpp>

namespace ferry::inline v0 {

template <>
struct derivative<op::softmax> {
  static constexpr derivative_keeps keeps{.outputs = true};
  static std::array<tensor, 1> backward(const op::softmax::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {detail::softmax_gradient(gradient, run.output(), with.axis, false)};
  }
};

template <>
struct derivative<op::log_softmax> {
  static constexpr derivative_keeps keeps{.outputs = true};
  static std::array<tensor, 1> backward(const op::log_softmax::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {detail::softmax_gradient(gradient, run.output(), with.axis, true)};
  }
};

template <>
struct derivative<op::logsumexp> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 1> backward(const op::logsumexp::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {mul(softmax(run.input(0), with.axis), gradient)};
  }
};

}  // namespace ferry::inline v0

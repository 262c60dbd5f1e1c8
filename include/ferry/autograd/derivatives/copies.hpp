#pragma once

// Of copies and of writes in place.

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/tensor/operations.hpp>

namespace ferry::inline v0 {
template <>
struct derivative<op::clone> : detail::passed_on_derivative {};
template <>
struct derivative<op::pack> : detail::passed_on_derivative {};

template <>
struct derivative<op::to_dtype> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::to_dtype::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return {gradient.to(run.facts(0).type)};
  }
};

template <>
struct derivative<op::to_device> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::to_device::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return {gradient.to(run.facts(0).where)};
  }
};

template <>
struct derivative<op::copy_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 2> backward(const op::copy_::parameters&, const backward_run& run, const tensor& gradient) {
    // Nothing is left of the target's old value.
    return {tensor(), run.wants(1)
                          ? detail::summed_to(gradient, run.facts(1).shape).to(run.facts(1).type).to(run.facts(1).where)
                          : tensor()};
  }
};

template <>
struct derivative<op::fill_> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::fill_::parameters&, const backward_run&, const tensor&) { return {}; }
};

}  // namespace ferry::inline v0

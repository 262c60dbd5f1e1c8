#pragma once

// Of functions of elements. What has no numbers of its own keeps nothing for its gradient; of the others, each keeps either its argument
// or its value.

#include <array>
#include <concepts>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/elementwise.hpp>

namespace ferry::inline v0 {

template <operation_descriptor Op>
  requires std::same_as<decltype(Op::function), const detail::unary_function>
struct derivative<Op> {
  static constexpr detail::slope_source source = detail::slope_source_of(Op::function);
  static constexpr derivative_keeps keeps{.inputs = source == detail::slope_source::input,
                                          .outputs = source == detail::slope_source::result};
  static std::array<tensor, 1> backward(const typename Op::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {detail::function_gradient(Op::function, with.numbers(), gradient,
                                      source == detail::slope_source::nothing ? gradient
                                      : source == detail::slope_source::input ? run.input(0)
                                                                              : run.output())};
  }
};

template <operation_descriptor Op>
  requires std::same_as<decltype(Op::function), const detail::binary_function>
struct derivative<Op> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 2> backward(const typename Op::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    const auto towards = [&](std::size_t input) {
      return run.fit(
          input, [&] { return detail::function_gradient(Op::function, input, gradient, run.input(0), run.input(1)); });
    };
    return {towards(0), towards(1)};
  }
};

}  // namespace ferry::inline v0

#pragma once

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/sum.hpp>

namespace ferry::inline v0 {

template <>
struct derivative<op::sum> {
  static constexpr derivative_keeps keeps{};
  static std::array<tensor, 1> backward(const op::sum::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    dims kept = run.facts(0).shape;
    for (const std::int64_t axis : with.axes) kept[static_cast<std::size_t>(axis)] = 1;
    return {gradient.view(kept).expand(run.facts(0).shape)};
  }
};

}  // namespace ferry::inline v0

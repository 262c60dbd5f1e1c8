#pragma once

#include <array>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/matmul.hpp>

namespace ferry::inline v0 {

template <>
struct derivative<op::matmul> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 2> backward(const op::matmul::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return matmul(gradient, run.input(1).transpose(0, 1)); }),
            run.fit(1, [&] { return matmul(run.input(0).transpose(0, 1), gradient); })};
  }
};

}  // namespace ferry::inline v0

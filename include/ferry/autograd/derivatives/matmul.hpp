#pragma once

// Of products of matrices. A gradient with respect to one operand is a product with the transpose of the other, over as many axes
// as the result has; fit() sums it over those that were broadcast.

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <ferry/autograd/derivative.hpp>
#include <ferry/ops/linear.hpp>
#include <ferry/ops/matmul.hpp>
#include <ferry/ops/sum.hpp>

namespace ferry::inline v0 {
namespace detail {

/// The rows of all matrices of a tensor as those of one.
inline tensor as_rows(const tensor& t) {
  std::int64_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < t.rank(); ++axis) rows *= t.shape()[axis];
  return t.rank() == 2 ? t : t.reshape({rows, t.size(-1)});
}

}  // namespace detail

template <>
struct derivative<op::matmul> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::array<tensor, 2> backward(const op::matmul::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    // Vectors as the matrices that they stood for.
    const bool row = run.input(0).rank() == 1;
    const bool column = run.input(1).rank() == 1;
    const tensor a = row ? run.input(0).unsqueeze(0) : run.input(0);
    const tensor b = column ? run.input(1).unsqueeze(1) : run.input(1);
    tensor g = column ? gradient.unsqueeze(-1) : gradient;
    if (row) g = g.unsqueeze(-2);
    return {run.fit(0,
                    [&] {
                      const tensor all = matmul(g, b.transpose(-2, -1));
                      return row ? all.squeeze(-2) : all;
                    }),
            run.fit(1, [&] {
              // One matrix on the right has met the rows of all on the left.
              const bool fold = b.rank() == 2 && a.rank() > 2;
              const tensor all = fold ? matmul(detail::as_rows(a).transpose(0, 1), detail::as_rows(g))
                                      : matmul(a.transpose(-2, -1), g);
              return column ? all.squeeze(-1) : all;
            })};
  }
};

template <>
struct derivative<op::linear> {
  static constexpr derivative_keeps keeps{.inputs = true};
  static std::vector<tensor> backward(const op::linear::parameters&, const backward_run& run, const tensor& gradient) {
    std::vector<tensor> all{run.fit(0, [&] { return matmul(gradient, run.input(1)); }), run.fit(1, [&] {
                              return matmul(detail::as_rows(gradient).transpose(0, 1), detail::as_rows(run.input(0)));
                            })};
    if (run.inputs() == 3) all.push_back(run.fit(2, [&] { return sum(detail::as_rows(gradient), {0}); }));
    return all;
  }
};

}  // namespace ferry::inline v0

#pragma once

// Of what picks elements, adds them and joins them.

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include <ferry/autograd/derivative.hpp>
#include <ferry/autograd/detail/memory.hpp>
#include <ferry/ops/extremes.hpp>
#include <ferry/ops/indexing.hpp>
#include <ferry/ops/joining.hpp>
#include <ferry/ops/sparse.hpp>
#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0 {
namespace detail {

/// Zeros with the gradient at the places of the elements that were picked along the axis.
inline tensor put_back(const backward_run& run, std::int64_t axis, const tensor& places, const tensor& gradient) {
  return scatter_add(ferry::zeros(run.facts(0).shape, gradient.dtype(), gradient.device()), axis, places, gradient);
}

/// Of operations that return elements and their places.
struct picking_derivative {
  static constexpr derivative_keeps keeps{.outputs = true};
  template <class Parameters>
  static std::array<tensor, 1> backward(const Parameters& with, const backward_run& run,
                                        std::span<const tensor> gradients) {
    return {put_back(run, with.axis, run.output(1), gradients[0])};
  }
};

struct scatter_add_derivative {
  static constexpr derivative_keeps keeps{.inputs = true, .which = 0b010};
  template <class Parameters>
  static std::array<tensor, 3> backward(const Parameters& with, const backward_run& run, const tensor& gradient) {
    return {gradient, tensor(), run.fit(2, [&] { return gather(gradient, with.axis, run.input(1)); })};
  }
};

}  // namespace detail

template <>
struct derivative<op::extreme> : detail::picking_derivative {};
template <>
struct derivative<op::topk> : detail::picking_derivative {};

template <>
struct derivative<op::gather> {
  static constexpr derivative_keeps keeps{.inputs = true, .which = 0b10};
  static std::array<tensor, 2> backward(const op::gather::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return {detail::put_back(run, with.axis, run.input(1), gradient), tensor()};
  }
};

template <>
struct derivative<op::scatter_add> : detail::scatter_add_derivative {};
template <>
struct derivative<op::scatter_add_> : detail::scatter_add_derivative {};

template <>
struct derivative<op::embedding> {
  static constexpr derivative_keeps keeps{.inputs = true, .which = 0b10};
  static std::array<tensor, 2> backward(const op::embedding::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    const tensor all = zeros(run.facts(0).shape, gradient.dtype(), gradient.device());
    index_add_(all, 0, run.input(1), gradient);
    return {all, tensor()};
  }
  static sparse_tensor sparse_backward(const op::embedding::parameters&, const backward_run& run, tensor gradient) {
    // Kept beyond the pass: a user may write the indices, and what shares memory with the gradient, then.
    tensor rows = detail::is_only_owner(gradient) ? std::move(gradient) : gradient.clone();
    return {run.input(1).clone().unsqueeze(0), std::move(rows), run.facts(0).shape};
  }
};

template <>
struct derivative<op::cat> {
  static constexpr derivative_keeps keeps{};
  static std::vector<tensor> backward(const op::cat::parameters& with, const backward_run& run,
                                      const tensor& gradient) {
    std::vector<tensor> parts;
    std::int64_t begin = 0;
    for (std::size_t i = 0; i != run.inputs(); ++i) {
      parts.push_back(run.wants(i) ? gradient.narrow(with.axis, begin, with.sizes[i]) : tensor());
      begin += with.sizes[i];
    }
    return parts;
  }
};

}  // namespace ferry::inline v0

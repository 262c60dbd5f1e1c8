#pragma once

// Of views: the gradient of the whole is that of the part, and zero elsewhere.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include <ferry/autograd/derivative.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>

namespace ferry::inline v0 {
namespace detail {

struct view_derivative {
  static constexpr derivative_keeps keeps{};

 protected:
  /// Zeros like the whole, in which `part(whole)` is the gradient.
  template <class Part>
  static std::array<tensor, 1> filled(const backward_run& run, const tensor& gradient, const Part& part) {
    const value_facts& facts = run.facts(0);
    tensor whole = ferry::zeros(facts.shape, facts.type, facts.where);
    part(whole).copy_(gradient);
    return {std::move(whole)};
  }
  static std::array<tensor, 1> reshaped(const backward_run& run, const tensor& gradient) {
    return {gradient.reshape(run.facts(0).shape)};
  }
};

}  // namespace detail

template <>
struct derivative<op::slice> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::slice::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return filled(run, gradient,
                  [&](const tensor& whole) { return whole.slice(with.axis, with.start, with.stop, with.step); });
  }
};

template <>
struct derivative<op::select> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::select::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    return filled(run, gradient, [&](const tensor& whole) { return whole.select(with.axis, with.index); });
  }
};

template <>
struct derivative<op::transpose> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::transpose::parameters& with, const backward_run&,
                                        const tensor& gradient) {
    return {gradient.transpose(with.first, with.second)};
  }
};

template <>
struct derivative<op::permute> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::permute::parameters& with, const backward_run&,
                                        const tensor& gradient) {
    dims back = with.order;
    for (std::size_t i = 0; i != back.size(); ++i)
      back[static_cast<std::size_t>(with.order[i])] = static_cast<std::int64_t>(i);
    return {gradient.permute(back)};
  }
};

template <>
struct derivative<op::view> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::view::parameters&, const backward_run& run, const tensor& gradient) {
    return reshaped(run, gradient);
  }
};
template <>
struct derivative<op::unsqueeze> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::unsqueeze::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return reshaped(run, gradient);
  }
};
template <>
struct derivative<op::squeeze> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::squeeze::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return reshaped(run, gradient);
  }
};

template <>
struct derivative<op::expand> : detail::view_derivative {
  static std::array<tensor, 1> backward(const op::expand::parameters&, const backward_run& run,
                                        const tensor& gradient) {
    return {run.fit(0, [&] { return gradient; })};
  }
};

template <>
struct derivative<op::as_strided> {
  static constexpr derivative_keeps keeps{.inputs = true};  // their layout
  static std::array<tensor, 1> backward(const op::as_strided::parameters& with, const backward_run& run,
                                        const tensor& gradient) {
    // The view may reach beyond its input: a stretch of memory that has both.
    const tensor& input = run.layout(0);
    const std::int64_t from = std::min(with.offset, input.storage_offset());
    const std::int64_t to = std::max(detail::end_of_elements(with.shape, with.strides, with.offset),
                                     detail::end_of_elements(input.shape(), input.strides(), input.storage_offset()));
    const tensor memory = ferry::zeros({to - from}, input.dtype(), input.device());
    detail::add_to_part(memory.as_strided(with.shape, with.strides, with.offset - from), gradient);
    return {memory.as_strided(input.shape(), input.strides(), input.storage_offset() - from)};
  }
};

}  // namespace ferry::inline v0

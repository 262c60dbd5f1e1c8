#pragma once

// Helpers of the tensor floor's sources: making tensors from their parts, and walking over their elements.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {
namespace detail {

/// A tensor of these parts, unchecked apart from the product of the sizes; without elements, strides and offset are
/// reset.
tensor make_tensor(storage bytes, dtype type, dims shape, dims strides, std::int64_t offset);

/// The axis counted from the front. `rank` may be larger than the tensor's (a place for a new axis).
std::size_t normal_axis(std::int64_t axis, std::size_t rank, const tensor& t);

/// The number of elements a storage needs so that all of this shape lie in it. Throws errc::bad_shape for negative or
/// mismatched strides and overflow (also of the bytes).
std::int64_t spanned_elements(const dims& shape, const dims& strides, dtype type);

/// The strides under which the elements of `t` have this shape of as many elements; false if there are none.
bool view_strides(const tensor& t, const dims& shape, dims& strides);

/// `shape` with its -1, if any, worked out. Throws errc::bad_shape if the number of elements differs from t's.
dims complete_shape(const tensor& t, const dims& shape);

/// tensor::expand without telling hooks.
tensor expanded(const tensor& t, const dims& shape);

/// Throws errc::bad_device unless `t` is on the CPU.
void need_cpu(const tensor& t, std::string_view operation);
/// Throws errc::bad_shape if one element of memory stands for several of `t`.
void need_distinct(const tensor& t, std::string_view operation);

/// Copies (and converts) elements between CPU tensors of one shape whose memory does not overlap; no hooks, no version.
void copy_elements(const tensor& from, const tensor& to);
/// Writes one value to all elements of a CPU tensor; no hooks, no version.
void fill_elements(const tensor& t, const scalar& value);
/// Whether writing `a` may change what is read through `b` other than element for element.
bool may_overlap(const tensor& a, const tensor& b);

/// A walk over N tensors of one shape: axes joined where possible, sorted so that the first operand is written in
/// order.
template <std::size_t N>
struct walk {
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> shape;
  std::array<std::array<std::int64_t, N>, max_rank> steps;  // in bytes
  std::array<std::byte*, N> start;
  bool empty = false;
};

template <std::size_t N>
walk<N> plan_walk(const std::array<const tensor*, N>& operands);

/// Calls inner(pointers, byte steps, count) for rows that together visit every element once.
template <std::size_t N, class Inner>
void run_walk(const walk<N>& plan, Inner&& inner) {
  if (plan.empty) return;
  std::array<std::byte*, N> at = plan.start;
  std::array<std::int64_t, max_rank> index{};
  const std::size_t last = plan.rank - 1;
  for (;;) {
    inner(at, plan.steps[last], plan.shape[last]);
    std::size_t axis = last;
    for (;;) {
      if (axis == 0) return;
      --axis;
      for (std::size_t n = 0; n != N; ++n) at[n] += plan.steps[axis][n];
      if (++index[axis] != plan.shape[axis]) break;
      for (std::size_t n = 0; n != N; ++n) at[n] -= plan.steps[axis][n] * plan.shape[axis];
      index[axis] = 0;
    }
  }
}

}  // namespace detail
}  // namespace ferry::inline v0

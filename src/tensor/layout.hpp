#pragma once

// Helpers of the tensor sources: making tensors from their parts, and walking over their elements.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/tensor/tensor.hpp>

#include "walk.hpp"

namespace ferry::inline v0 {
namespace detail {

/// A tensor of these parts, unchecked apart from the product of the sizes; without elements, strides and offset are
/// reset.
tensor make_tensor(storage bytes, dtype type, dims shape, dims strides, std::int64_t offset);

/// The axis counted from the front. `rank` may be larger than the tensor's (a place for a new axis).
std::size_t normal_axis(std::int64_t axis, std::size_t rank, const tensor& t);

/// The number of elements a storage needs to contain all of this shape. Throws errc::bad_shape for negative or
/// mismatched strides and overflow (also of the bytes).
std::int64_t spanned_elements(const dims& shape, const dims& strides, dtype type);

/// The strides under which the elements of `t` have this shape of as many elements; false if there are none.
bool view_strides(const tensor& t, const dims& shape, dims& strides);

/// `shape` with its -1, if any, computed. Throws errc::bad_shape if the number of elements differs from t's.
dims complete_shape(const tensor& t, const dims& shape);

/// Throws errc::bad_shape unless `t` expands to this shape.
void need_expands(const tensor& t, const dims& shape);
/// tensor::expand without calling hooks; `t` itself if it has that shape.
tensor expanded(const tensor& t, const dims& shape);

/// Whether the host can access the memory of `where` and operations there complete at once.
bool on_host(device where);

/// Throws errc::bad_device unless `t` is on the CPU.
void need_cpu(const tensor& t, std::string_view operation);
/// Throws errc::bad_device unless both are one.
void need_one_device(device a, device b, std::string_view operation);
/// Throws errc::bad_shape if one element of memory stands for several of `t`.
void need_distinct(const tensor& t, std::string_view operation);

/// Copies (and converts) elements between tensors of one shape whose memory does not overlap and is accessible by the
/// host; no hooks, no version.
void copy_elements(const tensor& from, const tensor& to);
/// Writes one value to all elements of a tensor that the host can access; no hooks, no version.
void fill_elements(const tensor& t, const scalar& value);
/// The element that represents `value` in a tensor of that type; its first dtype_size(type) bytes are used.
struct element_bytes {
  alignas(16) std::array<unsigned char, 16> bytes{};
};
element_bytes element_of(dtype type, const scalar& value);

// The same on any devices, in the order of their current streams; see transfer.cpp.

/// As copy_elements. Returns when the elements have been written if only the target is on the host, when they have been
/// read if only the source is; else at once.
void move_elements(const tensor& from, const tensor& to);
/// As fill_elements.
void fill_anywhere(const tensor& t, const scalar& value);
/// Whether writing `a` may change elements read through `b` other than the corresponding ones.
bool may_overlap(const tensor& a, const tensor& b);

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

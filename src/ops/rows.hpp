#pragma once

// Functions of the elements along an axis of several tensors: one index of a kernel is one row. On the CPU, a loop calls them.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <ferry/tensor/tensor.hpp>

#include "../tensor/kernels.hpp"
#include "../tensor/layout.hpp"
#include "wrapping.hpp"

namespace ferry::inline v0::detail {

/// The rows of N tensors that agree in all other axes.
template <std::size_t N>
struct row_plan {
  walk<N> outer;  // over the first elements of the rows
  std::int64_t length = 0;
  std::array<std::int64_t, N> step;  // in bytes
};

template <std::size_t N>
row_plan<N> plan_rows(const std::array<const tensor*, N>& operands, std::int64_t axis, std::int64_t length) {
  row_plan<N> plan;
  plan.length = length;
  std::array<tensor, N> firsts;
  std::array<const tensor*, N> all{};
  for (std::size_t n = 0; n != N; ++n) {
    const tensor& t = *operands[n];
    dims shape = t.shape();
    shape[static_cast<std::size_t>(axis)] = 1;
    plan.step[n] = t.strides()[static_cast<std::size_t>(axis)] * static_cast<std::int64_t>(dtype_size(t.dtype()));
    firsts[n] = make_tensor(t.storage(), t.dtype(), shape, t.strides(), t.storage_offset());
    all[n] = &firsts[n];
  }
  plan.outer = plan_walk<N>(all);
  for (std::size_t n = 0; n != N; ++n) {  // rows without elements, which may have no memory to point to
    if (plan.outer.start[n] != nullptr || plan.outer.empty) continue;
    for (std::size_t i = 0; i != plan.outer.rank; ++i) plan.outer.steps[i][n] = 0;
  }
  return plan;
}

/// For adding `source` to `to` at the places in `index`.
inline row_plan<3> plan_scatter(const tensor& to, const tensor& index, const tensor& source, std::int64_t axis) {
  const tensor part = make_tensor(to.storage(), to.dtype(), index.shape(), to.strides(), to.storage_offset());
  return plan_rows<3>({&part, &index, &source}, axis, index.size(axis));
}

/// Calls a kernel of rows for each, on the CPU.
template <class Kernel>
void run_rows(const Kernel& kernel) {
  if (kernel.plan.outer.empty) return;
  const std::int64_t count = element_count(kernel.plan.outer);
  for (std::int64_t row = 0; row != count; ++row) kernel(row);
}

/// exp(x - largest) and its sum: what all of them begin with.
template <class T>
struct row_exponentials {
  T largest;
  double total = 0;
  FERRY_KERNEL row_exponentials(std::byte* in, std::int64_t step, std::int64_t length)
      : largest(-std::numeric_limits<T>::infinity()) {
    for (std::int64_t i = 0; i != length; ++i) {
      const T x = element_at<T>(in + i * step);
      if (x > largest || x != x) largest = x;
    }
    if (largest == -std::numeric_limits<T>::infinity()) return;
    if (largest == std::numeric_limits<T>::infinity()) total = std::numeric_limits<double>::infinity();
    for (std::int64_t i = 0; i != length; ++i)
      total += static_cast<double>(std::exp(element_at<T>(in + i * step) - largest));
  }
};

/// 0 = softmax of 1, or its logarithm.
template <class T>
struct softmax_kernel {
  row_plan<2> plan;
  bool logarithm;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan.outer, index);
    const row_exponentials<T> row(at[1], plan.step[1], plan.length);
    const T factor = static_cast<T>(1 / row.total);
    const T difference = static_cast<T>(std::log(row.total));
    for (std::int64_t i = 0; i != plan.length; ++i) {
      const T x = element_at<T>(at[1] + i * plan.step[1]);
      element_at<T>(at[0] + i * plan.step[0]) =
          logarithm ? (x - row.largest) - difference : std::exp(x - row.largest) * factor;
    }
  }
};

/// 0 = the gradient for 1, that of the result 2.
template <class T>
struct softmax_gradient_kernel {
  row_plan<3> plan;
  bool logarithm;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan.outer, index);
    double total = 0;
    for (std::int64_t i = 0; i != plan.length; ++i) {
      const T gradient = element_at<T>(at[1] + i * plan.step[1]);
      total += static_cast<double>(logarithm ? gradient : gradient * element_at<T>(at[2] + i * plan.step[2]));
    }
    for (std::int64_t i = 0; i != plan.length; ++i) {
      const T gradient = element_at<T>(at[1] + i * plan.step[1]);
      const T result = element_at<T>(at[2] + i * plan.step[2]);
      element_at<T>(at[0] + i * plan.step[0]) =
          logarithm ? gradient - std::exp(result) * static_cast<T>(total) : result * (gradient - static_cast<T>(total));
    }
  }
};

/// The first element of 0 = log(sum(exp(1))).
template <class T>
struct logsumexp_kernel {
  row_plan<2> plan;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan.outer, index);
    const row_exponentials<T> row(at[1], plan.step[1], plan.length);
    const bool finite = std::fabs(row.largest) != std::numeric_limits<T>::infinity();
    element_at<T>(at[0]) = finite ? row.largest + static_cast<T>(std::log(row.total)) : row.largest;
  }
};

/// The first elements of 0 and, of i64, of 1 = the extreme of 2 and its place.
template <class T>
struct extreme_kernel {
  row_plan<3> plan;
  bool largest;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan.outer, index);
    T best = element_at<T>(at[2]);
    std::int64_t place = 0;
    for (std::int64_t i = 1; i < plan.length && best == best; ++i) {  // a NaN stays
      const T x = element_at<T>(at[2] + i * plan.step[2]);
      if (largest ? x > best || x != x : x < best || x != x) {
        best = x;
        place = i;
      }
    }
    element_at<T>(at[0]) = best;
    element_at<std::int64_t>(at[1]) = place;
  }
};

/// 0 += 2 at the places 1, of i64, along the axis, one row of them after the other: the sums do not depend on the device.
template <class T>
struct scatter_add_kernel {
  row_plan<3> plan;
  std::int64_t places;
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan.outer, index);
    for (std::int64_t i = 0; i != plan.length; ++i) {
      const std::int64_t place = element_at<std::int64_t>(at[1] + i * plan.step[1]);
      if (place < 0 || place >= places) continue;
      T& to = element_at<T>(at[0] + place * plan.step[0]);
      const T x = element_at<T>(at[2] + i * plan.step[2]);
      to = plus(to, x);
    }
  }
};

/// 0 = the element of 2 at the place 1, of i64, along the axis; elements of the size of Bits. 2 does not step along it.
template <class Bits>
struct gather_kernel {
  walk<3> plan;
  std::int64_t places;
  std::int64_t step;  // of 2 along the axis
  template <class Index>
  FERRY_KERNEL void operator()(Index index) const {
    const auto at = locate(plan, index);
    const std::int64_t place = element_at<std::int64_t>(at[1]);
    element_at<Bits>(at[0]) = place < 0 || place >= places ? Bits{} : element_at<Bits>(at[2] + place * step);
  }
};

}  // namespace ferry::inline v0::detail

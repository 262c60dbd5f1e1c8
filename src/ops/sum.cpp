#include <ferry/ops/sum.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/elementwise.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/kernels.hpp"
#include "../tensor/layout.hpp"
#include "device_arithmetic.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {

namespace detail {
namespace {

// Sums into `totals`, which has the shape of `t` but for the axes of size 1 that are summed over.
template <class T, class Total>
void add_up(const tensor& totals, const tensor& t) {
  const tensor target = expanded(totals, t.shape());
  run_walk(plan_walk<2>({&target, &t}), [](const auto& at, const auto& step, std::int64_t count) {
    if (step[0] != 0) {
      for (std::int64_t i = 0; i != count; ++i) {
        Total& total = element_at<Total>(at[0] + i * step[0]);
        total = plus(total, static_cast<Total>(element_at<T>(at[1] + i * step[1])));
      }
      return;
    }
    Total& place = element_at<Total>(at[0]);
    Total total = place;
    for (std::int64_t i = 0; i != count; ++i)
      total = plus(total, static_cast<Total>(element_at<T>(at[1] + i * step[1])));
    place = total;
  });
}

// Two views of `t`: without the axes, at their index 0, with size 1; and of these axes alone.
std::pair<tensor, tensor> divided(const tensor& t, const dims& kept, const dims& axes) {
  dims lengths(axes.size(), std::int64_t{0});
  dims strides(axes.size(), std::int64_t{0});
  for (std::size_t i = 0; i != axes.size(); ++i) {
    lengths[i] = t.shape()[static_cast<std::size_t>(axes[i])];
    strides[i] = t.strides()[static_cast<std::size_t>(axes[i])];
  }
  return {make_tensor(t.storage(), t.dtype(), kept, t.strides(), t.storage_offset()),
          make_tensor(t.storage(), t.dtype(), lengths, strides, t.storage_offset())};
}

// `t` without the axes of size 1.
tensor without(const tensor& t, const dims& axes) {
  dims shape(t.rank() - axes.size(), std::int64_t{0});
  std::size_t next = 0;
  for (std::size_t axis = 0; axis != t.rank(); ++axis) {
    if (std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(axis)) == axes.end())
      shape[next++] = t.shape()[axis];
  }
  return t.view(shape);
}

}  // namespace
}  // namespace detail

tensor op::sum::compute(const parameters& with, const tensor& t) {
  dims kept = t.shape();
  for (const std::int64_t axis : with.axes) kept[static_cast<std::size_t>(axis)] = 1;
  const tensor result = detail::visit_arithmetic(t.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    using total_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
    using result_type = std::conditional_t<std::is_integral_v<T>, std::int64_t, T>;
    if (!t.device().is_cpu()) {
      tensor sums = empty(kept, dtype_of<result_type>, t.device());
      const auto [first, reduced] = detail::divided(t, kept, with.axes);
      detail::sum_by_kernel(sums, first, reduced);
      return sums;
    }
    const tensor totals = zeros(kept, dtype_of<total_type>);
    detail::add_up<T, total_type>(totals, t);
    return totals.to(dtype_of<result_type>);
  });
  return with.keep ? result : detail::without(result, with.axes);
}

tensor sum(const tensor& t) {
  dims all(t.rank(), std::int64_t{0});
  for (std::size_t axis = 0; axis != all.size(); ++axis) all[axis] = static_cast<std::int64_t>(axis);
  return run_operation<op::sum>({std::move(all)}, t);
}

tensor sum(const tensor& t, const dims& axes, bool keep) {
  dims normal = axes;
  for (std::size_t i = 0; i != normal.size(); ++i) {
    normal[i] = static_cast<std::int64_t>(detail::normal_axis(axes[i], t.rank(), t));
    if (std::find(normal.begin(), normal.begin() + i, normal[i]) == normal.begin() + i) continue;
    throw_error(errc::bad_shape, fmt::format("sum over the axes {} of a tensor of shape {}: one comes twice",
                                             to_string(axes), to_string(t.shape())));
  }
  return run_operation<op::sum>({std::move(normal), keep}, t);
}

namespace detail {
namespace {

void need_reals(const tensor& t) {
  if (t.dtype() == dtype::f32 || t.dtype() == dtype::f64) return;
  throw_error(errc::bad_dtype,
              fmt::format("mean works on f32 and f64, not on {}; convert with to()", dtype_name(t.dtype())));
}

}  // namespace
}  // namespace detail

tensor mean(const tensor& t) {
  detail::need_reals(t);
  return div(sum(t), static_cast<double>(t.numel()));
}

tensor mean(const tensor& t, const dims& axes, bool keep) {
  detail::need_reals(t);
  const tensor total = sum(t, axes, keep);
  double count = 1;
  for (const std::int64_t axis : axes) count *= static_cast<double>(t.size(axis));
  return div(total, count);
}

}  // namespace ferry::inline v0

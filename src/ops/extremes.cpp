#include <ferry/ops/extremes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "device_rows.hpp"
#include "numbers.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

std::int64_t axis_with_elements(const tensor& t, std::int64_t axis, std::string_view operation) {
  const auto normal = static_cast<std::int64_t>(normal_axis(axis, t.rank(), t));
  if (t.size(normal) != 0) return normal;
  throw_error(errc::bad_shape, fmt::format("{} along axis {} of a tensor of shape {}: it has no elements", operation,
                                           axis, to_string(t.shape())));
}

indexed_values extreme_along(const tensor& t, std::int64_t axis, bool keep, bool largest) {
  const std::int64_t normal = axis_with_elements(t, axis, largest ? "max" : "min");
  auto found = run_operation<op::extreme>({normal, largest}, t);
  if (keep) return {std::move(found[0]), std::move(found[1])};
  return {found[0].squeeze(normal), found[1].squeeze(normal)};
}

// Of the results and of the tensor.
struct topk_row {
  std::byte* values;
  std::int64_t values_step;
  std::byte* indices;
  std::int64_t indices_step;
  std::byte* in;
  std::int64_t in_step;
};

// The places of the largest elements, the first of equal ones first; NaN is the largest.
template <class T>
void sort_row(const topk_row& row, std::int64_t length, std::int64_t count, std::vector<std::int64_t>& places) {
  places.resize(static_cast<std::size_t>(length));
  std::iota(places.begin(), places.end(), std::int64_t{0});
  const auto at = [&](std::int64_t place) { return element_at<T>(row.in + place * row.in_step); };
  std::partial_sort(places.begin(), places.begin() + count, places.end(), [&](std::int64_t a, std::int64_t b) {
    const T x = at(a);
    const T y = at(b);
    if (x == y || (x != x && y != y)) return a < b;
    return x != x || x > y;
  });
  for (std::int64_t i = 0; i != count; ++i) {
    element_at<T>(row.values + i * row.values_step) = at(places[static_cast<std::size_t>(i)]);
    element_at<std::int64_t>(row.indices + i * row.indices_step) = places[static_cast<std::size_t>(i)];
  }
}

}  // namespace
}  // namespace detail

std::array<tensor, 2> op::extreme::compute(const parameters& with, const tensor& t) {
  dims kept = t.shape();
  kept[static_cast<std::size_t>(with.axis)] = 1;
  std::array<tensor, 2> found{empty(kept, t.dtype(), t.device()), empty(kept, dtype::i64, t.device())};
  if (!t.device().is_cpu()) {
    detail::extreme_by_kernel(found[0], found[1], t, with.axis, with.largest);
    return found;
  }
  const auto plan = detail::plan_rows<3>({&found[0], &found[1], &t}, with.axis, t.size(with.axis));
  detail::visit_arithmetic(t.dtype(), [&]<class T>(std::type_identity<T>) {
    detail::run_rows(detail::extreme_kernel<T>{plan, with.largest});
  });
  return found;
}

std::array<tensor, 2> op::topk::compute(const parameters& with, const tensor& t) {
  dims shape = t.shape();
  shape[static_cast<std::size_t>(with.axis)] = with.count;
  std::array<tensor, 2> found{empty(shape, t.dtype()), empty(shape, dtype::i64)};
  const auto plan = detail::plan_rows<3>({&found[0], &found[1], &t}, with.axis, t.size(with.axis));
  if (plan.outer.empty) return found;
  std::vector<std::int64_t> places;
  for (std::int64_t row = 0; row != detail::element_count(plan.outer); ++row) {
    const auto at = detail::locate(plan.outer, row);
    const detail::topk_row where{at[0], plan.step[0], at[1], plan.step[1], at[2], plan.step[2]};
    detail::visit_arithmetic(t.dtype(), [&]<class T>(std::type_identity<T>) {
      detail::sort_row<T>(where, plan.length, with.count, places);
    });
  }
  return found;
}

indexed_values max(const tensor& t, std::int64_t axis, bool keep) { return detail::extreme_along(t, axis, keep, true); }
indexed_values min(const tensor& t, std::int64_t axis, bool keep) {
  return detail::extreme_along(t, axis, keep, false);
}
tensor argmax(const tensor& t, std::int64_t axis, bool keep) { return max(t, axis, keep).indices; }
tensor argmin(const tensor& t, std::int64_t axis, bool keep) { return min(t, axis, keep).indices; }
tensor max(const tensor& t) { return max(t.reshape({-1}), 0).values; }
tensor min(const tensor& t) { return min(t.reshape({-1}), 0).values; }

indexed_values topk(const tensor& t, std::int64_t count, std::int64_t axis) {
  const auto normal = static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t));
  if (count < 0 || count > t.size(normal)) {
    throw_error(errc::invalid_argument, fmt::format("topk: {} elements along axis {} of a tensor of shape {}", count,
                                                    axis, to_string(t.shape())));
  }
  auto found = run_operation<op::topk>({normal, count}, t);
  return {std::move(found[0]), std::move(found[1])};
}

}  // namespace ferry::inline v0

#include "layout.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::inline v0::detail {

std::size_t normal_axis(std::int64_t axis, std::size_t rank, const tensor& t) {
  const auto count = static_cast<std::int64_t>(rank);
  if (count == 0) throw_error(errc::bad_shape, fmt::format("axis {} of a tensor of shape []: it has no axes", axis));
  if (axis < -count || axis >= count) {
    throw_error(errc::bad_shape, fmt::format("axis {} is out of range for shape {}; valid are {} to {}", axis,
                                             to_string(t.shape()), -count, count - 1));
  }
  return static_cast<std::size_t>(axis < 0 ? axis + count : axis);
}

std::int64_t spanned_elements(const dims& shape, const dims& strides, dtype type) {
  if (shape.size() != strides.size()) {
    throw_error(errc::bad_shape,
                fmt::format("shape {} and strides {} have different lengths", to_string(shape), to_string(strides)));
  }
  const std::int64_t count = element_count(shape);
  std::int64_t last = 0;
  bool overflow = false;
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (strides[axis] < 0) {
      throw_error(errc::bad_shape, fmt::format("stride {} in {} is negative", strides[axis], to_string(strides)));
    }
    std::int64_t reach = 0;
    overflow = __builtin_mul_overflow(strides[axis], std::max<std::int64_t>(shape[axis] - 1, 0), &reach) || overflow;
    overflow = __builtin_add_overflow(last, reach, &last) || overflow;
  }
  if (count == 0) return 0;  // strides are irrelevant
  const auto size = static_cast<std::int64_t>(dtype_size(type));
  std::int64_t bytes = 0;
  std::int64_t span = 0;
  overflow = __builtin_mul_overflow(count, size, &bytes) || overflow;
  overflow = __builtin_add_overflow(last, 1, &span) || __builtin_mul_overflow(span, size, &bytes) || overflow;
  if (overflow) {
    throw_error(errc::bad_shape, fmt::format("shape {} with strides {} of {} takes more bytes than fit into 63 bits",
                                             to_string(shape), to_string(strides), dtype_name(type)));
  }
  return span;
}

dims complete_shape(const tensor& t, const dims& shape) {
  dims result = shape;
  std::int64_t known = 1;
  std::int64_t* open = nullptr;
  bool fits = true;
  for (std::int64_t& size : result) {
    if (size == -1 && !open) {
      open = &size;
    } else if (size < 0 || __builtin_mul_overflow(known, size, &known)) {
      fits = false;
    }
  }
  if (fits && open) {
    fits = known != 0 && t.numel() % known == 0;
    if (fits) *open = t.numel() / known;
  } else if (fits) {
    fits = known == t.numel();
  }
  if (!fits) {
    throw_error(errc::bad_shape, fmt::format("a tensor of shape {} ({} elements) cannot take the shape {}",
                                             to_string(t.shape()), t.numel(), to_string(shape)));
  }
  return result;
}

// Walks over both shapes from the back, cutting the old axes into runs in which elements follow each other at a fixed
// distance; every new axis must lie within one run.
bool view_strides(const tensor& t, const dims& shape, dims& strides) {
  strides = contiguous_strides(shape);
  if (t.numel() == 0) return true;
  const dims& old_shape = t.shape();
  const dims& old_strides = t.strides();
  std::size_t next = shape.size();  // new axes from here on are done
  std::int64_t run = 1;             // elements of the run so far
  std::int64_t unit = 0;            // the distance between its neighbours
  const auto place = [&] {          // the new axes that make up the finished run
    std::int64_t step = unit;
    while (next != 0 && (run > 1 || shape[next - 1] == 1)) {
      const std::int64_t size = shape[next - 1];
      if (run % size != 0) return false;
      strides[--next] = step;
      step *= size;
      run /= size;
    }
    return run == 1;
  };
  for (std::size_t axis = old_shape.size(); axis-- != 0;) {
    if (old_shape[axis] == 1) continue;
    if (run == 1) {
      unit = old_strides[axis];
    } else if (old_strides[axis] != unit * run) {
      if (!place()) return false;
      unit = old_strides[axis];
    }
    run *= old_shape[axis];
  }
  if (run > 1 && !place()) return false;
  return true;
}

bool on_host(device where) { return where.is_cpu() || operations_of(where.kind).immediate; }

void need_cpu(const tensor& t, std::string_view operation) {
  if (t.device().is_cpu()) return;
  throw_error(errc::bad_device,
              fmt::format("{} works on CPU tensors; this one is on {}: move it with to(ferry::device{{}})", operation,
                          to_string(t.device())));
}

void need_distinct(const tensor& t, std::string_view operation) {
  // Sorted by stride, each axis must step over everything that the smaller ones reach. Layouts that interleave without
  // overlap are refused as well: they do not come from views.
  std::array<std::size_t, max_rank> order{};
  std::size_t rank = 0;
  for (std::size_t axis = 0; axis != t.rank(); ++axis) {
    if (t.shape()[axis] > 1) order[rank++] = axis;
  }
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(rank),
            [&](std::size_t a, std::size_t b) { return t.strides()[a] < t.strides()[b]; });
  std::int64_t reach = 0;
  for (std::size_t n = 0; n != rank && t.numel() != 0; ++n) {
    const std::int64_t stride = t.strides()[order[n]];
    if (stride <= reach) {
      throw_error(errc::bad_shape,
                  fmt::format("{} would write some elements in memory more than once: shape {}, strides {}; write to a "
                              "clone() instead",
                              operation, to_string(t.shape()), to_string(t.strides())));
    }
    reach += stride * (t.shape()[order[n]] - 1);
  }
}

bool may_overlap(const tensor& a, const tensor& b) {
  // By address, not by storage: two storages may wrap the same foreign memory.
  if (a.numel() == 0 || b.numel() == 0 || a.device() != b.device()) return false;
  const auto bounds = [](const tensor& t) {
    const auto first = reinterpret_cast<std::uintptr_t>(t.data());
    const std::int64_t span = spanned_elements(t.shape(), t.strides(), t.dtype());
    return std::pair(first, first + static_cast<std::uintptr_t>(span) * dtype_size(t.dtype()));
  };
  const auto [a_first, a_last] = bounds(a);
  const auto [b_first, b_last] = bounds(b);
  if (a_first >= b_last || b_first >= a_last) return false;
  return !(a_first == b_first && a.dtype() == b.dtype() && a.shape() == b.shape() && a.strides() == b.strides());
}

template <std::size_t N>
walk<N> plan_walk(const std::array<const tensor*, N>& operands) {
  walk<N> plan;
  std::array<std::size_t, N> element{};
  for (std::size_t n = 0; n != N; ++n) {
    plan.start[n] = static_cast<std::byte*>(operands[n]->data());
    element[n] = dtype_size(operands[n]->dtype());
  }
  const dims& shape = operands[0]->shape();
  plan.empty = operands[0]->numel() == 0;
  if (plan.empty) return plan;  // strides of empty shapes may be too large for byte steps
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] == 1) continue;
    plan.shape[plan.rank] = shape[axis];
    for (std::size_t n = 0; n != N; ++n) {
      plan.steps[plan.rank][n] = operands[n]->strides()[axis] * static_cast<std::int64_t>(element[n]);
    }
    ++plan.rank;
  }
  // Largest steps outermost, by the first operand, then by the next.
  const auto before = [&](std::size_t a, std::size_t b) { return plan.steps[a] > plan.steps[b]; };
  for (std::size_t i = 1; i < plan.rank; ++i) {
    for (std::size_t j = i; j != 0 && before(j, j - 1); --j) {
      std::swap(plan.steps[j], plan.steps[j - 1]);
      std::swap(plan.shape[j], plan.shape[j - 1]);
    }
  }
  // Adjacent axes are merged if every operand steps through them as through one.
  std::size_t kept = 0;
  for (std::size_t axis = 1; axis < plan.rank; ++axis) {
    bool joins = true;
    for (std::size_t n = 0; n != N; ++n) {
      joins = joins && plan.steps[kept][n] == plan.steps[axis][n] * plan.shape[axis];
    }
    if (joins) {
      plan.shape[kept] *= plan.shape[axis];
    } else {
      plan.shape[++kept] = plan.shape[axis];
    }
    plan.steps[kept] = plan.steps[axis];
  }
  if (plan.rank == 0) {
    plan.shape[0] = 1;
    plan.steps[0] = {};
  }
  plan.rank = kept + 1;
  return plan;
}

template walk<1> plan_walk(const std::array<const tensor*, 1>&);
template walk<2> plan_walk(const std::array<const tensor*, 2>&);
template walk<3> plan_walk(const std::array<const tensor*, 3>&);
template walk<4> plan_walk(const std::array<const tensor*, 4>&);
template walk<5> plan_walk(const std::array<const tensor*, 5>&);

}  // namespace ferry::inline v0::detail

#include <ferry/ops/indexing.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/comparison.hpp>
#include <ferry/ops/extremes.hpp>
#include <ferry/ops/joining.hpp>
#include <ferry/ops/sum.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "device_rows.hpp"
#include "numbers.hpp"
#include "rows.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

void need_indices(const tensor& index, const tensor& t, std::string_view operation) {
  if (index.dtype() != dtype::i64) {
    throw_error(errc::bad_dtype,
                fmt::format("{}: the indices are of {}; they have to be of i64", operation, dtype_name(index.dtype())));
  }
  if (index.device() == t.device()) return;
  throw_error(errc::bad_device, fmt::format("{} of elements on {} with indices on {}: move one of them with to()",
                                            operation, to_string(t.device()), to_string(index.device())));
}

// Nowhere longer than `t`, but along the axis.
void need_within(const tensor& index, const tensor& t, std::int64_t axis, std::string_view operation) {
  bool fits = index.rank() == t.rank();
  for (std::size_t i = 0; fits && i != t.rank(); ++i)
    fits = static_cast<std::int64_t>(i) == axis || index.shape()[i] <= t.shape()[i];
  if (fits) return;
  throw_error(errc::bad_shape, fmt::format("{} along axis {} of a tensor of shape {} with indices of shape {}",
                                           operation, axis, to_string(t.shape()), to_string(index.shape())));
}

[[noreturn]] void refuse_index(std::int64_t place, std::int64_t places, std::string_view operation) {
  throw_error(errc::invalid_argument,
              fmt::format("{}: the index {} is {}", operation, place,
                          place < 0 ? "negative; they count from 0" : fmt::format("not below {}", places)));
}

void need_in_range(const tensor& index, std::int64_t places, std::string_view operation) {
  run_walk(plan_walk<1>({&index}), [&](const auto& at, const auto& step, std::int64_t count) {
    for (std::int64_t i = 0; i != count; ++i) {
      const std::int64_t place = element_at<std::int64_t>(at[0] + i * step[0]);
      if (place < 0 || place >= places) refuse_index(place, places, operation);
    }
  });
}

// Elements of `from`, which does not step along the axis.
void gather_elements(const tensor& to, const tensor& index, const tensor& from, std::int64_t places,
                     std::int64_t stride) {
  const std::size_t size = dtype_size(to.dtype());
  const std::int64_t bytes = stride * static_cast<std::int64_t>(size);
  run_walk(plan_walk<3>({&to, &index, &from}), [&](const auto& at, const auto& step, std::int64_t count) {
    const auto place_at = [&](std::int64_t i) {
      const std::int64_t place = element_at<std::int64_t>(at[1] + i * step[1]);
      if (place < 0 || place >= places) refuse_index(place, places, op::gather::name);
      return place;
    };
    if (step[1] == 0 && step[0] == static_cast<std::int64_t>(size) && step[2] == step[0]) {  // a piece of one slice
      std::memcpy(at[0], at[2] + place_at(0) * bytes, static_cast<std::size_t>(count) * size);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i)
      std::memcpy(at[0] + i * step[0], at[2] + i * step[2] + place_at(i) * bytes, size);
  });
}

// Where every index is that of a whole slice, a slice after the other, which is added in vectors.
template <class T>
void add_slices(const tensor& to, const tensor& index, const tensor& source, std::int64_t stride) {
  run_walk(plan_walk<3>({&source, &index, &to}), [&](const auto& at, const auto& step, std::int64_t count) {
    constexpr auto size = static_cast<std::int64_t>(sizeof(T));
    if (step[1] == 0 && step[0] == size && step[2] == size) {
      const T* from = &element_at<T>(at[0]);
      T* out = &element_at<T>(at[2] + element_at<std::int64_t>(at[1]) * stride * size);
      for (std::int64_t i = 0; i != count; ++i) out[i] = plus(out[i], from[i]);
      return;
    }
    for (std::int64_t i = 0; i != count; ++i) {
      T& out = element_at<T>(at[2] + i * step[2] + element_at<std::int64_t>(at[1] + i * step[1]) * stride * size);
      out = plus(out, element_at<T>(at[0] + i * step[0]));
    }
  });
}

// `t` with this shape, and without a step along the axis.
tensor along_places(const tensor& t, const dims& shape, std::int64_t axis) {
  dims strides = t.strides();
  strides[static_cast<std::size_t>(axis)] = 0;
  return make_tensor(t.storage(), t.dtype(), shape, strides, t.storage_offset());
}

// One index for each slice, of one axis, as one for each element of `shape`.
tensor for_slices(const tensor& index, const dims& shape, std::int64_t axis) {
  dims line(shape.size(), std::int64_t{1});
  line[static_cast<std::size_t>(axis)] = index.numel();
  return index.view(line).expand(shape);
}

// Where each bag ends. The offsets begin at 0, and do not descend.
std::vector<std::int64_t> ends_of_bags(const tensor& offsets, std::int64_t count) {
  need_cpu(offsets, "embedding_bag: the offsets");
  if (offsets.dtype() != dtype::i64) {
    throw_error(errc::bad_dtype, fmt::format("embedding_bag: the offsets are of {}; they have to be of i64",
                                             dtype_name(offsets.dtype())));
  }
  const tensor all = offsets.contiguous();
  const auto* const first = all.data<std::int64_t>();
  std::vector<std::int64_t> ends(first, first + all.numel());
  const bool ascends = std::is_sorted(ends.begin(), ends.end());
  if (ends.empty() ? count != 0 : !ascends || ends.front() != 0 || ends.back() > count) {
    throw_error(
        errc::invalid_argument,
        fmt::format("embedding_bag: the offsets have to ascend from 0 to at most the number of indices, {}", count));
  }
  if (ends.empty()) return ends;
  ends.erase(ends.begin());
  ends.push_back(count);
  return ends;
}

[[noreturn]] void refuse_added_dtype(const tensor& source, const tensor& t, std::string_view operation) {
  throw_error(errc::bad_dtype, fmt::format("{} of {} to {}: convert one of them with to()", operation,
                                           dtype_name(source.dtype()), dtype_name(t.dtype())));
}

void need_scatter(std::int64_t axis, const tensor& t, const tensor& index, const tensor& source,
                  std::string_view operation) {
  need_indices(index, t, operation);
  need_within(index, t, axis, operation);
  if (source.dtype() != t.dtype()) refuse_added_dtype(source, t, operation);
  need_one_device(t.device(), source.device(), operation);
  if (source.shape() != index.shape()) {
    throw_error(errc::bad_shape, fmt::format("{} of elements of shape {} with indices of shape {}", operation,
                                             to_string(source.shape()), to_string(index.shape())));
  }
  visit_arithmetic(t.dtype(), [](auto) {});
  if (t.device().is_cpu()) need_in_range(index, t.size(axis), operation);
}

void scatter_onto(std::int64_t axis, const tensor& to, const tensor& index, const tensor& source) {
  if (!to.device().is_cpu()) return scatter_add_by_kernel(to, index, source, axis);
  visit_arithmetic(to.dtype(), [&]<class T>(std::type_identity<T>) {
    add_slices<T>(along_places(to, index.shape(), axis), index, source, to.strides()[static_cast<std::size_t>(axis)]);
  });
}

dims shape_of_slices(const tensor& t, std::int64_t axis, const tensor& index, std::string_view operation) {
  if (index.rank() != 1) {
    throw_error(errc::bad_shape, fmt::format("{}: the indices are of shape {}; they have to have one axis", operation,
                                             to_string(index.shape())));
  }
  dims shape = t.shape();
  shape[static_cast<std::size_t>(axis)] = index.numel();
  return shape;
}

}  // namespace
}  // namespace detail

tensor op::gather::compute(const parameters& with, const tensor& t, const tensor& index) {
  detail::need_indices(index, t, name);
  detail::need_within(index, t, with.axis, name);
  tensor result = empty(index.shape(), t.dtype(), t.device());
  const auto axis = static_cast<std::size_t>(with.axis);
  const std::int64_t places = t.shape()[axis];
  const std::int64_t stride = t.strides()[axis];
  if (places == 0 && index.numel() != 0) detail::refuse_index(0, 0, name);
  const tensor from = detail::along_places(t, index.shape(), with.axis);
  if (t.device().is_cpu()) {
    detail::gather_elements(result, index, from, places, stride);
  } else {
    detail::gather_by_kernel(result, index, from, places, stride * static_cast<std::int64_t>(dtype_size(t.dtype())));
  }
  return result;
}

tensor op::scatter_add::compute(const parameters& with, const tensor& t, const tensor& index, const tensor& source) {
  detail::need_scatter(with.axis, t, index, source, name);
  tensor result = t.clone();
  detail::scatter_onto(with.axis, result, index, source);
  return result;
}

void op::scatter_add_::check(const parameters& with, const tensor& t, const tensor& index, const tensor& source) {
  detail::need_scatter(with.axis, t, index, source, name);
}
void op::scatter_add_::compute(const parameters& with, const tensor& t, const tensor& index, const tensor& source) {
  const auto apart = [&](const tensor& each) { return detail::may_overlap(t, each) ? each.clone() : each; };
  detail::scatter_onto(with.axis, t, apart(index), apart(source));
}

namespace detail {
namespace {

// Slices of one axis. Each index is looked at once, and named as one of that operation.
tensor select_slices(const tensor& t, std::int64_t axis, const tensor& index, std::string_view operation) {
  const dims shape = shape_of_slices(t, axis, index, operation);
  need_indices(index, t, operation);
  if (index.device().is_cpu()) need_in_range(index, t.size(axis), operation);
  return gather(t, axis, for_slices(index, shape, axis));
}

}  // namespace
}  // namespace detail

tensor op::embedding::compute(const parameters&, const tensor& weight, const tensor& index) {
  return detail::select_slices(weight, 0, index, name);
}

tensor gather(const tensor& t, std::int64_t axis, const tensor& index) {
  return run_operation<op::gather>({static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t))}, t, index);
}
tensor scatter_add(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source) {
  return run_operation<op::scatter_add>({static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t))}, t, index,
                                        source);
}

tensor index_select(const tensor& t, std::int64_t axis, const tensor& index) {
  return detail::select_slices(t, static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t)), index,
                               "index_select");
}

namespace detail {
namespace {

// What index_add() gives to scatter_add().
struct added_slices {
  std::int64_t axis;
  tensor places;
  tensor source;
};
added_slices slices_to_add(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source,
                           const scalar& alpha, std::string_view operation) {
  const auto normal = static_cast<std::int64_t>(normal_axis(axis, t.rank(), t));
  const dims shape = shape_of_slices(t, normal, index, operation);
  need_indices(index, t, operation);
  if (source.shape() != shape) {
    throw_error(errc::bad_shape,
                fmt::format("{} of slices of shape {}: {} indices along axis {} of {} need {}", operation,
                            to_string(source.shape()), index.numel(), normal, to_string(t.shape()), to_string(shape)));
  }
  if (source.dtype() != t.dtype()) refuse_added_dtype(source, t, operation);
  if (index.device().is_cpu()) need_in_range(index, t.size(normal), operation);
  return {normal, for_slices(index, shape, normal), is_one(alpha) ? source : mul(source, alpha)};
}

}  // namespace
}  // namespace detail

tensor index_add(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source, const scalar& alpha) {
  const detail::added_slices with = detail::slices_to_add(t, axis, index, source, alpha, "index_add");
  return run_operation<op::scatter_add>({with.axis}, t, with.places, with.source);
}
const tensor& index_add_(const tensor& t, std::int64_t axis, const tensor& index, const tensor& source,
                         const scalar& alpha) {
  const detail::added_slices with = detail::slices_to_add(t, axis, index, source, alpha, "index_add_");
  run_operation<op::scatter_add_>({with.axis}, t, with.places, with.source);
  return t;
}

tensor embedding(const tensor& weight, const tensor& indices, const embedding_options& with) {
  if (weight.rank() != 2) {
    throw_error(errc::bad_shape, fmt::format("embedding: the weight is of shape {}; it has to be [count, width]",
                                             to_string(weight.shape())));
  }
  const tensor flat = indices.reshape({-1});
  const tensor rows = with.sparse_gradient ? run_operation<op::embedding>({}, weight, flat)
                                           : detail::select_slices(weight, 0, flat, "embedding");
  if (indices.rank() == 1) return rows;
  dims shape(indices.rank() + 1, weight.size(1));
  std::copy(indices.shape().begin(), indices.shape().end(), shape.begin());
  return rows.view(shape);
}

tensor embedding_bag(const tensor& weight, const tensor& indices, bag_mode mode, const embedding_options& with) {
  if (indices.rank() != 2) {
    throw_error(errc::bad_shape,
                fmt::format("embedding_bag without offsets: the indices are of shape {}; they have to be "
                            "[bags, size]",
                            to_string(indices.shape())));
  }
  const tensor rows = embedding(weight, indices, with);
  if (indices.size(1) == 0) return sum(rows, {1});
  switch (mode) {
    case bag_mode::sum: return sum(rows, {1});
    case bag_mode::mean: return mean(rows, {1});
    case bag_mode::max: break;
  }
  return max(rows, 1).values;
}

tensor embedding_bag(const tensor& weight, const tensor& indices, const tensor& offsets, bag_mode mode,
                     const embedding_options& with) {
  if (indices.rank() != 1 || offsets.rank() != 1) {
    throw_error(errc::bad_shape,
                fmt::format("embedding_bag: indices of shape {} and offsets of shape {}; both have to have one "
                            "axis",
                            to_string(indices.shape()), to_string(offsets.shape())));
  }
  const std::vector<std::int64_t> ends = detail::ends_of_bags(offsets, indices.numel());
  const auto bags = static_cast<std::int64_t>(ends.size());
  const tensor rows = embedding(weight, indices, with);
  if (mode == bag_mode::max) {
    std::vector<tensor> all;
    for (std::int64_t bag = 0, begin = 0; bag != bags; begin = ends[static_cast<std::size_t>(bag++)]) {
      const std::int64_t size = ends[static_cast<std::size_t>(bag)] - begin;
      all.push_back(size == 0 ? zeros({weight.size(1)}, weight.dtype(), weight.device())
                              : max(rows.narrow(0, begin, size), 0).values);
    }
    return bags == 0 ? zeros({0, weight.size(1)}, weight.dtype(), weight.device()) : stack(all);
  }
  const tensor bag_of = empty({indices.numel()}, dtype::i64);
  const tensor shares = empty({bags, 1}, dtype::f64);
  for (std::int64_t bag = 0, begin = 0; bag != bags; begin = ends[static_cast<std::size_t>(bag++)]) {
    const std::int64_t end = ends[static_cast<std::size_t>(bag)];
    std::fill(bag_of.data<std::int64_t>() + begin, bag_of.data<std::int64_t>() + end, bag);
    shares.data<double>()[bag] = end == begin ? 0 : 1 / static_cast<double>(end - begin);
  }
  const tensor sums =
      index_add(zeros({bags, weight.size(1)}, weight.dtype(), weight.device()), 0, bag_of.to(weight.device()), rows);
  return mode == bag_mode::sum ? sums : mul(sums, shares.to(weight.dtype()).to(weight.device()));
}

tensor one_hot(const tensor& indices, std::int64_t classes) {
  if (classes < 0) throw_error(errc::invalid_argument, fmt::format("one_hot: {} classes", classes));
  detail::need_indices(indices, indices, "one_hot");
  if (indices.device().is_cpu()) detail::need_in_range(indices, classes, "one_hot");
  return eq(indices.unsqueeze(-1), arange(0, classes, 1, dtype::i64, indices.device())).to(dtype::i64);
}

}  // namespace ferry::inline v0

#include <ferry/ops/sparse.hpp>

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/comparison.hpp>
#include <ferry/ops/indexing.hpp>
#include <ferry/ops/joining.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"
#include "grouping.hpp"
#include "numbers.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Sizes from an axis on.
dims sizes_from(const dims& shape, std::size_t axis) { return {shape.begin() + axis, shape.size() - axis}; }

dims with_count(std::int64_t count, const dims& others) {
  std::vector<std::int64_t> all{count};
  all.insert(all.end(), others.begin(), others.end());
  return dims(all);
}

std::int64_t places_in(const dims& shape, std::size_t axes) {
  return ferry::element_count(std::span<const std::int64_t>(shape).first(axes));
}

// Throws unless the indices, dense and on the CPU, are within the shape.
void need_places(const tensor& indices, const dims& shape) {
  const auto* const first = indices.data<std::int64_t>();
  const std::int64_t count = indices.size(1);
  for (std::int64_t axis = 0; axis != indices.size(0); ++axis) {
    const std::int64_t size = shape[static_cast<std::size_t>(axis)];
    for (std::int64_t i = 0; i != count; ++i) {
      const std::int64_t index = first[axis * count + i];
      if (index >= 0 && index < size) continue;
      throw_error(
          errc::invalid_argument,
          fmt::format("the index {} of value {} along axis {} of a sparse tensor of shape {} is {}", index, i, axis,
                      to_string(shape), index < 0 ? "negative; they count from 0" : fmt::format("not below {}", size)));
    }
  }
}

// Whether the places, dense and on the CPU, ascend.
bool ascend(const tensor& indices) {
  const auto* const first = indices.data<std::int64_t>();
  const std::int64_t count = indices.size(1);
  for (std::int64_t i = 1; i < count; ++i) {
    std::int64_t axis = 0;
    while (axis != indices.size(0) && first[axis * count + i - 1] == first[axis * count + i]) ++axis;
    if (axis == indices.size(0) || first[axis * count + i - 1] > first[axis * count + i]) return false;
  }
  return true;
}

void need_sparse_parts(const tensor& indices, const tensor& values, const dims& shape) {
  if (!indices.defined() || !values.defined()) {
    throw_error(errc::invalid_argument, "a sparse tensor of undefined indices or values");
  }
  if (indices.dtype() != dtype::i64) {
    throw_error(errc::bad_dtype, fmt::format("the indices of a sparse tensor are of {}; they have to be of i64",
                                             dtype_name(indices.dtype())));
  }
  const auto refuse = [&](const char* why) {
    throw_error(errc::bad_shape,
                fmt::format("a sparse tensor of shape {} with indices of shape {} and values of shape "
                            "{}: {}",
                            to_string(shape), to_string(indices.shape()), to_string(values.shape()), why));
  };
  if (indices.rank() != 2) refuse("the indices have to be [sparse axes, count]");
  const auto axes = static_cast<std::size_t>(indices.size(0));
  if (axes == 0 || axes > shape.size()) refuse("the shape has to have each of the sparse axes, at least one");
  if (values.shape() != with_count(indices.size(1), sizes_from(shape, axes)))
    refuse("the values have to be [count, axes of the shape that are not sparse...]");
  if (indices.device() != values.device()) {
    throw_error(errc::bad_device, fmt::format("a sparse tensor with indices on {} and values on {}: move one of them "
                                              "with to()",
                                              to_string(indices.device()), to_string(values.device())));
  }
  (void)contiguous_strides(shape);
}

void need_same(const char* what, const dims& a_shape, dtype a_type, device a_device, const sparse_tensor& b) {
  if (a_shape != b.shape()) {
    throw_error(errc::bad_shape, fmt::format("{} of shapes {} and {}", what, to_string(a_shape), to_string(b.shape())));
  }
  if (a_type != b.dtype()) {
    throw_error(errc::bad_dtype, fmt::format("{} of {} and {}: convert one of them with to()", what, dtype_name(a_type),
                                             dtype_name(b.dtype())));
  }
  need_one_device(a_device, b.device(), what);
}

bool has_repeats(const tensor& t) {
  for (std::size_t axis = 0; axis != t.rank(); ++axis) {
    if (t.shape()[axis] > 1 && t.strides()[axis] == 0) return true;
  }
  return false;
}

}  // namespace
}  // namespace detail

sparse_tensor::sparse_tensor(tensor indices, tensor values, dims shape) {
  detail::need_sparse_parts(indices, values, shape);
  if (indices.device().is_cpu()) detail::need_places(indices.contiguous(), shape);
  indices_ = std::move(indices);
  values_ = std::move(values);
  shape_ = std::move(shape);
}

sparse_tensor sparse_tensor::with(tensor indices, tensor values, bool coalesced) const {
  sparse_tensor made;
  made.indices_ = std::move(indices);
  made.values_ = std::move(values);
  made.shape_ = shape_;
  made.coalesced_ = coalesced;
  return made;
}

void sparse_tensor::refuse_undefined() { throw_error(errc::invalid_argument, "use of an undefined sparse tensor"); }

sparse_tensor sparse_tensor::from_dense(const tensor& t, std::size_t sparse_axes) {
  if (sparse_axes == 0 || sparse_axes > t.rank()) {
    throw_error(errc::bad_shape, fmt::format("a sparse tensor with {} sparse axes of a tensor of shape {}", sparse_axes,
                                             to_string(t.shape())));
  }
  const std::int64_t places = detail::places_in(t.shape(), sparse_axes);
  const dims inner = detail::sizes_from(t.shape(), sparse_axes);
  const std::int64_t width = ferry::element_count(inner);
  std::vector<std::int64_t> found;
  {
    const detail::unreported parts;
    const tensor there = ne(t, full({}, 0, t.dtype(), t.device())).to(ferry::device{}).contiguous();
    const bool* const first = there.data<bool>();
    for (std::int64_t i = 0; i != places; ++i) {
      const bool* const begin = first + i * width;
      if (std::find(begin, begin + width, true) != begin + width) found.push_back(i);
    }
  }
  const auto count = static_cast<std::int64_t>(found.size());
  const tensor flat = from_vector(found).to(t.device());
  sparse_tensor made;
  made.shape_ = t.shape();
  made.values_ = index_select(t.reshape(detail::with_count(places, inner)), 0, flat);
  const tensor indices = empty({static_cast<std::int64_t>(sparse_axes), count}, dtype::i64);
  for (std::int64_t i = 0; i != count; ++i) {
    std::int64_t place = found[static_cast<std::size_t>(i)];
    for (std::size_t axis = sparse_axes; axis-- != 0; place /= t.shape()[axis])
      indices.data<std::int64_t>()[static_cast<std::int64_t>(axis) * count + i] = place % t.shape()[axis];
  }
  made.indices_ = indices.to(t.device());
  made.coalesced_ = true;
  return made;
}

dims sparse_tensor::flat_shape() const {
  return detail::with_count(detail::places_in(shape_, sparse_axes()), detail::sizes_from(shape_, sparse_axes()));
}

tensor sparse_tensor::flat_places() const {
  const std::size_t axes = sparse_axes();
  const dims strides = contiguous_strides(std::span<const std::int64_t>(shape_).first(axes));
  tensor flat = indices_.select(0, static_cast<std::int64_t>(axes - 1));
  for (std::size_t axis = axes - 1; axis-- != 0;)
    flat = ferry::add(flat, indices_.select(0, static_cast<std::int64_t>(axis)), strides[axis]);
  return flat;
}

sparse_tensor sparse_tensor::coalesce() const {
  if (is_coalesced()) return *this;
  const tensor here = indices_.to(ferry::device{}).contiguous();
  detail::need_places(here, shape_);
  const std::int64_t count = nnz();
  const std::size_t axes = sparse_axes();
  const tensor flat = with(here, values_, false).flat_places().contiguous();
  const detail::number_groups groups =
      detail::group_numbers({flat.data<std::int64_t>(), static_cast<std::size_t>(count)});
  const auto distinct = static_cast<std::int64_t>(groups.distinct.size());
  const tensor indices = empty({static_cast<std::int64_t>(axes), distinct}, dtype::i64);
  for (std::int64_t i = 0; i != distinct; ++i) {
    const auto first = static_cast<std::size_t>(groups.begins[static_cast<std::size_t>(i)]);
    for (std::int64_t axis = 0; axis != here.size(0); ++axis) {
      indices.data<std::int64_t>()[axis * distinct + i] = here.data<std::int64_t>()[axis * count + groups.order[first]];
    }
  }
  const tensor placed = indices.to(indices_.device());
  if (distinct == count) {
    return with(placed, index_select(values_, 0, from_vector(groups.order).to(values_.device())), true);
  }
  std::vector<std::int64_t> sum_of(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i != groups.distinct.size(); ++i) {
    for (std::int64_t at = groups.begins[i]; at != groups.begins[i + 1]; ++at)
      sum_of[static_cast<std::size_t>(groups.order[static_cast<std::size_t>(at)])] = static_cast<std::int64_t>(i);
  }
  const tensor sums = zeros(detail::with_count(distinct, detail::sizes_from(shape_, axes)), dtype(), device());
  index_add_(sums, 0, from_vector(sum_of).to(values_.device()), values_);
  return with(placed, sums, true);
}

tensor sparse_tensor::to_dense() const {
  const tensor whole = zeros(flat_shape(), dtype(), device());
  index_add_(whole, 0, flat_places(), values_);
  return sparse_axes() == 1 ? whole : whole.view(shape_);
}

sparse_tensor sparse_tensor::to(ferry::device where) const {
  return with(indices().to(where), values().to(where), coalesced_);
}
sparse_tensor sparse_tensor::to(ferry::dtype type) const { return with(indices(), values().to(type), coalesced_); }

// ---------------------------------------------------------------- archives

// An axis of stride 0 is sent once: a few bytes could claim any number of indices.
tensor sparse_tensor::without_repeats(const tensor& t) { return detail::has_repeats(t) ? t.contiguous() : t; }

dims sparse_tensor::archived_shape(std::uint8_t record, std::uint64_t rank) {
  if (record > 2 || rank > max_rank) {
    throw_error(errc::malformed, fmt::format("no sparse tensor: a record of kind {} with {} axes", record, rank));
  }
  return dims(static_cast<std::size_t>(rank), std::int64_t{0});
}

sparse_tensor sparse_tensor::from_archive(std::uint8_t record, tensor indices, tensor values, dims shape) {
  try {
    if (indices.defined() && values.defined() && (detail::has_repeats(indices) || detail::has_repeats(values)))
      throw_error(errc::malformed, "elements that share memory");
    sparse_tensor made(std::move(indices), std::move(values), std::move(shape));
    made.coalesced_ = record == 2;
    if (made.coalesced_ && made.device().is_cpu() && !detail::ascend(made.indices_.contiguous()))
      throw_error(errc::malformed, "said to be coalesced, but its places do not ascend");
    return made;
  } catch (const error& e) {
    throw_error(errc::malformed, fmt::format("no sparse tensor: {}", e.message()));
  }
}

// ---------------------------------------------------------------- arithmetic

sparse_tensor concatenate(std::span<const sparse_tensor> all) {
  if (all.empty()) throw_error(errc::invalid_argument, "the sum of no sparse tensors");
  const sparse_tensor& first = all.front().need_defined();
  if (all.size() == 1) return first;
  std::vector<tensor> indices;
  std::vector<tensor> values;
  for (const sparse_tensor& each : all) {
    detail::need_same("the sum of sparse tensors", first.shape(), first.dtype(), first.device(), each);
    if (each.sparse_axes() != first.sparse_axes()) {
      throw_error(errc::bad_shape, fmt::format("the sum of sparse tensors with {} and {} sparse axes",
                                               first.sparse_axes(), each.sparse_axes()));
    }
    indices.push_back(each.indices_);
    values.push_back(each.values_);
  }
  return first.with(cat(indices, 1), cat(values, 0), false);
}

sparse_tensor add(const sparse_tensor& a, const sparse_tensor& b, const scalar& alpha) {
  const sparse_tensor both[]{a.need_defined(), detail::is_one(alpha) ? b.need_defined() : mul(b, alpha)};
  return concatenate(both);
}

tensor add(const tensor& a, const sparse_tensor& b, const scalar& alpha) {
  detail::need_same("the sum of a dense and a sparse tensor", a.shape(), a.dtype(), a.device(), b);
  return index_add(a.reshape(b.flat_shape()), 0, b.flat_places(), b.values_, alpha).view(b.shape_);
}

const tensor& add_(const tensor& a, const sparse_tensor& b, const scalar& alpha) {
  detail::need_same("the sum of a dense and a sparse tensor", a.shape(), a.dtype(), a.device(), b);
  index_add_(b.sparse_axes() == 1 ? a : a.view(b.flat_shape()), 0, b.flat_places(), b.values_, alpha);
  return a;
}

sparse_tensor mul(const sparse_tensor& a, const scalar& b) {
  return a.need_defined().with(a.indices_, mul(a.values_, b), a.coalesced_);
}

bool equal(const sparse_tensor& a, const sparse_tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.shape() != b.shape() || a.sparse_axes() != b.sparse_axes() || a.dtype() != b.dtype()) return false;
  const sparse_tensor left = a.coalesce();
  const sparse_tensor right = b.coalesce();
  return equal(left.indices(), right.indices()) && equal(left.values(), right.values());
}

}  // namespace ferry::inline v0

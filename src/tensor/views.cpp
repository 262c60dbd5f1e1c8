#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/operations.hpp>
#include <ferry/tensor/tensor.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {

namespace detail {
namespace {

[[noreturn]] void refuse_expansion(const tensor& t, const dims& wanted) {
  throw_error(errc::bad_shape,
              fmt::format("shape {} does not expand to {}: only axes of size 1 stretch, and new ones go in front",
                          to_string(t.shape()), to_string(wanted)));
}

// A tensor over the storage of `base`.
tensor part_of(const tensor& base, dims shape, dims strides, std::int64_t offset) {
  return make_tensor(base.storage(), base.dtype(), std::move(shape), std::move(strides), offset);
}

std::int64_t front_axis(std::int64_t axis, const tensor& t) {
  return static_cast<std::int64_t>(normal_axis(axis, t.rank(), t));
}

}  // namespace

void need_expands(const tensor& t, const dims& wanted) {
  if (wanted.size() < t.rank()) refuse_expansion(t, wanted);
  const std::size_t added = wanted.size() - t.rank();
  for (std::size_t axis = 0; axis != wanted.size(); ++axis) {
    const bool fits = axis < added ? wanted[axis] >= 0
                                   : wanted[axis] == -1 || wanted[axis] == t.shape()[axis - added] ||
                                         (t.shape()[axis - added] == 1 && wanted[axis] >= 0);
    if (!fits) refuse_expansion(t, wanted);
  }
}

tensor expanded(const tensor& t, const dims& wanted) {
  if (t.shape() == wanted) return t;
  need_expands(t, wanted);
  const std::size_t added = wanted.size() - t.rank();
  dims new_shape = wanted;
  dims new_strides(wanted.size(), std::int64_t{0});
  for (std::size_t axis = added; axis != wanted.size(); ++axis) {
    const std::int64_t size = t.shape()[axis - added];
    if (wanted[axis] == -1 || wanted[axis] == size) {
      new_shape[axis] = size;
      new_strides[axis] = t.strides()[axis - added];
    }
  }
  spanned_elements(new_shape, new_strides, t.dtype());  // numel() and nbytes() must not overflow
  return part_of(t, std::move(new_shape), std::move(new_strides), t.storage_offset());
}

}  // namespace detail

tensor op::slice::compute(const parameters& with, const tensor& t) {
  const auto axis = static_cast<std::size_t>(with.axis);
  const std::int64_t length = with.stop - with.start;
  dims new_shape = t.shape();
  dims new_strides = t.strides();
  new_shape[axis] = length / with.step + (length % with.step != 0 ? 1 : 0);
  const std::int64_t offset = t.storage_offset() + with.start * new_strides[axis];
  // A step beyond the axis leaves at most one element, whose stride is irrelevant and must not overflow.
  if (new_shape[axis] > 1) new_strides[axis] *= with.step;
  return detail::part_of(t, std::move(new_shape), std::move(new_strides), offset);
}
tensor tensor::slice(std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step) const {
  const std::int64_t at = detail::front_axis(axis, *this);
  if (step < 1) throw_error(errc::bad_shape, fmt::format("the step of a slice must be at least 1, not {}", step));
  const std::int64_t size = shape()[static_cast<std::size_t>(at)];
  const auto clamp = [size](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  start = clamp(start);
  return run_operation<op::slice>({at, start, std::max(clamp(stop), start), step}, *this);
}

tensor tensor::narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const {
  const std::int64_t at = detail::front_axis(axis, *this);
  const std::int64_t size = shape()[static_cast<std::size_t>(at)];
  const std::int64_t first = start < 0 ? start + size : start;
  if (first < 0 || length < 0 || first > size || length > size - first) {
    throw_error(errc::bad_shape, fmt::format("narrow to {} indices from {} does not fit into axis {} of shape {}",
                                             length, start, at, to_string(shape())));
  }
  return slice(at, first, first + length);
}

tensor op::select::compute(const parameters& with, const tensor& t) {
  const auto axis = static_cast<std::size_t>(with.axis);
  dims new_shape(t.rank() - 1, std::int64_t{0});
  dims new_strides(t.rank() - 1, std::int64_t{0});
  for (std::size_t from = 0, to = 0; from != t.rank(); ++from) {
    if (from == axis) continue;
    new_shape[to] = t.shape()[from];
    new_strides[to++] = t.strides()[from];
  }
  const std::int64_t offset = t.storage_offset() + with.index * t.strides()[axis];
  return detail::part_of(t, std::move(new_shape), std::move(new_strides), offset);
}
tensor tensor::select(std::int64_t axis, std::int64_t index) const {
  if (rank() == 0) throw_error(errc::bad_shape, "select needs an axis, but the tensor has none: its shape is []");
  const std::size_t at = detail::normal_axis(axis, rank(), *this);
  detail::check_index(*this, at, index);
  return run_operation<op::select>({static_cast<std::int64_t>(at), index < 0 ? index + shape()[at] : index}, *this);
}

tensor op::transpose::compute(const parameters& with, const tensor& t) {
  dims new_shape = t.shape();
  dims new_strides = t.strides();
  std::swap(new_shape[static_cast<std::size_t>(with.first)], new_shape[static_cast<std::size_t>(with.second)]);
  std::swap(new_strides[static_cast<std::size_t>(with.first)], new_strides[static_cast<std::size_t>(with.second)]);
  return detail::part_of(t, std::move(new_shape), std::move(new_strides), t.storage_offset());
}
tensor tensor::transpose(std::int64_t first, std::int64_t second) const {
  const std::int64_t a = detail::front_axis(first, *this);
  const std::int64_t b = detail::front_axis(second, *this);
  return run_operation<op::transpose>({a, b}, *this);
}

tensor op::permute::compute(const parameters& with, const tensor& t) {
  dims new_shape = with.order;
  dims new_strides = with.order;
  for (std::size_t axis = 0; axis != with.order.size(); ++axis) {
    const auto from = static_cast<std::size_t>(with.order[axis]);
    new_shape[axis] = t.shape()[from];
    new_strides[axis] = t.strides()[from];
  }
  return detail::part_of(t, std::move(new_shape), std::move(new_strides), t.storage_offset());
}
tensor tensor::permute(const dims& order) const {
  std::array<bool, max_rank> seen{};
  dims from_front = order;
  bool valid = order.size() == rank();
  for (std::size_t axis = 0; valid && axis != order.size(); ++axis) {
    from_front[axis] = detail::front_axis(order[axis], *this);
    valid = !std::exchange(seen[static_cast<std::size_t>(from_front[axis])], true);
  }
  if (!valid) {
    throw_error(errc::bad_shape,
                fmt::format("{} does not list each axis of shape {} once", to_string(order), to_string(shape())));
  }
  return run_operation<op::permute>({std::move(from_front)}, *this);
}

tensor op::view::compute(const parameters& with, const tensor& t) {
  dims new_strides;
  if (!detail::view_strides(t, with.shape, new_strides)) {
    throw_error(errc::bad_shape,
                fmt::format("no view of shape {}: the tensor of shape {} has strides {}; reshape() copies",
                            to_string(with.shape), to_string(t.shape()), to_string(t.strides())));
  }
  return detail::part_of(t, with.shape, std::move(new_strides), t.storage_offset());
}
tensor tensor::view(const dims& wanted) const {
  return run_operation<op::view>({detail::complete_shape(*this, wanted)}, *this);
}

tensor tensor::reshape(const dims& wanted) const {
  op::view::parameters with{detail::complete_shape(*this, wanted)};
  dims new_strides;
  if (detail::view_strides(*this, with.shape, new_strides)) return run_operation<op::view>(with, *this);
  return run_operation<op::view>(with, clone());
}

tensor tensor::flatten(std::int64_t first, std::int64_t last) const {
  if (rank() == 0) return reshape({1});
  const std::size_t from = detail::normal_axis(first, rank(), *this);
  const std::size_t to = detail::normal_axis(last, rank(), *this);
  if (from > to) {
    throw_error(errc::bad_shape, fmt::format("flatten from axis {} to {}: the first is after the last", first, last));
  }
  dims new_shape(rank() - (to - from), std::int64_t{1});
  for (std::size_t axis = 0; axis != rank(); ++axis) {
    new_shape[axis <= from ? axis : axis <= to ? from : axis - (to - from)] *= shape()[axis];
  }
  return reshape(new_shape);
}

tensor op::unsqueeze::compute(const parameters& with, const tensor& t) {
  const auto at = static_cast<std::size_t>(with.axis);
  dims new_shape(t.rank() + 1, std::int64_t{1});
  dims new_strides(t.rank() + 1, std::int64_t{1});
  for (std::size_t from = 0; from != t.rank(); ++from) {
    const std::size_t to = from < at ? from : from + 1;
    new_shape[to] = t.shape()[from];
    new_strides[to] = t.strides()[from];
  }
  if (at != t.rank()) new_strides[at] = std::max<std::int64_t>(t.shape()[at], 1) * t.strides()[at];
  return detail::part_of(t, std::move(new_shape), std::move(new_strides), t.storage_offset());
}
tensor tensor::unsqueeze(std::int64_t axis) const {
  const std::size_t at = detail::normal_axis(axis, rank() + 1, *this);
  return run_operation<op::unsqueeze>({static_cast<std::int64_t>(at)}, *this);
}

tensor op::squeeze::compute(const parameters& with, const tensor& t) {
  std::size_t kept = 0;
  dims new_shape(t.rank(), std::int64_t{0});
  dims new_strides(t.rank(), std::int64_t{0});
  for (std::size_t axis = 0; axis != t.rank(); ++axis) {
    if (t.shape()[axis] == 1 && (!with.axis || *with.axis == static_cast<std::int64_t>(axis))) continue;
    new_shape[kept] = t.shape()[axis];
    new_strides[kept++] = t.strides()[axis];
  }
  return detail::part_of(t, dims(new_shape.begin(), kept), dims(new_strides.begin(), kept), t.storage_offset());
}
tensor tensor::squeeze() const { return run_operation<op::squeeze>({std::nullopt}, *this); }
tensor tensor::squeeze(std::int64_t axis) const {
  const std::size_t at = detail::normal_axis(axis, std::max<std::size_t>(rank(), 1), *this);
  return run_operation<op::squeeze>({static_cast<std::int64_t>(at)}, *this);
}

tensor op::expand::compute(const parameters& with, const tensor& t) {
  const tensor view = detail::expanded(t, with.shape);
  return view.same_as(t) ? detail::part_of(t, t.shape(), t.strides(), t.storage_offset()) : view;
}
tensor tensor::expand(const dims& wanted) const {
  detail::need_expands(*this, wanted);
  dims complete = wanted;
  for (std::size_t axis = wanted.size() - rank(); axis != wanted.size(); ++axis) {
    if (wanted[axis] == -1) complete[axis] = shape()[axis - (wanted.size() - rank())];
  }
  return run_operation<op::expand>({std::move(complete)}, *this);
}

tensor op::as_strided::compute(const parameters& with, const tensor& t) {
  const std::int64_t span = detail::spanned_elements(with.shape, with.strides, t.dtype());
  const auto available = static_cast<std::int64_t>(t.storage().size() / dtype_size(t.dtype()));
  if (with.offset < 0 || span > available || with.offset > available - span) {
    throw_error(errc::bad_shape,
                fmt::format("shape {} with strides {} at offset {} lies outside of the storage of {} elements",
                            to_string(with.shape), to_string(with.strides), with.offset, available));
  }
  return detail::part_of(t, with.shape, with.strides, with.offset);
}
tensor tensor::as_strided(const dims& new_shape, const dims& new_strides, std::int64_t offset) const {
  return run_operation<op::as_strided>({new_shape, new_strides, offset}, *this);
}

}  // namespace ferry::inline v0

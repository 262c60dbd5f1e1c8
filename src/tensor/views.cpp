#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/tensor.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {

namespace detail {

tensor expanded(const tensor& t, const dims& wanted) {
  if (t.shape() == wanted) return t;
  const auto refuse = [&] {
    throw_error(errc::bad_shape,
                fmt::format("shape {} does not expand to {}: only axes of size 1 stretch, and new ones go in front",
                            to_string(t.shape()), to_string(wanted)));
  };
  if (wanted.size() < t.rank()) refuse();
  const std::size_t added = wanted.size() - t.rank();
  dims new_shape = wanted;
  dims new_strides(wanted.size(), std::int64_t{0});
  for (std::size_t axis = 0; axis != wanted.size(); ++axis) {
    if (axis < added) {
      if (wanted[axis] < 0) refuse();
      continue;
    }
    const std::int64_t size = t.shape()[axis - added];
    if (wanted[axis] == -1 || wanted[axis] == size) {
      new_shape[axis] = size;
      new_strides[axis] = t.strides()[axis - added];
    } else if (size != 1 || wanted[axis] < 0) {
      refuse();
    }
  }
  spanned_elements(new_shape, new_strides, t.dtype());  // numel() and nbytes() must not overflow
  return make_tensor(t.storage(), t.dtype(), std::move(new_shape), std::move(new_strides), t.storage_offset());
}

}  // namespace detail

using detail::normal_axis;

tensor tensor::make_view(dims shape, dims strides, std::int64_t offset) const {
  tensor result = detail::make_tensor(storage(), dtype(), std::move(shape), std::move(strides), offset);
  if (slot()) {
    const std::shared_ptr<tensor_hooks> hooks = slot();
    hooks->viewed(*this, result);
  }
  return result;
}

tensor tensor::slice(std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step) const {
  const std::size_t at = normal_axis(axis, rank(), *this);
  if (step < 1) throw_error(errc::bad_shape, fmt::format("the step of a slice must be at least 1, not {}", step));
  const std::int64_t size = shape()[at];
  const auto clamp = [size](std::int64_t index) {
    return std::clamp<std::int64_t>(index < 0 ? index + size : index, 0, size);
  };
  start = clamp(start);
  stop = std::max(clamp(stop), start);
  dims new_shape = shape();
  dims new_strides = strides();
  new_shape[at] = (stop - start) / step + ((stop - start) % step != 0 ? 1 : 0);
  const std::int64_t offset = storage_offset() + start * new_strides[at];
  // A step beyond the axis leaves at most one element, whose stride is irrelevant and must not overflow.
  if (new_shape[at] > 1) new_strides[at] *= step;
  return make_view(std::move(new_shape), std::move(new_strides), offset);
}

tensor tensor::narrow(std::int64_t axis, std::int64_t start, std::int64_t length) const {
  const std::size_t at = normal_axis(axis, rank(), *this);
  const std::int64_t size = shape()[at];
  const std::int64_t first = start < 0 ? start + size : start;
  if (first < 0 || length < 0 || first > size || length > size - first) {
    throw_error(errc::bad_shape, fmt::format("narrow to {} indices from {} does not fit into axis {} of shape {}",
                                             length, start, at, to_string(shape())));
  }
  return slice(static_cast<std::int64_t>(at), first, first + length);
}

tensor tensor::select(std::int64_t axis, std::int64_t index) const {
  if (rank() == 0) throw_error(errc::bad_shape, "select needs an axis, but the tensor has none: its shape is []");
  const std::size_t at = normal_axis(axis, rank(), *this);
  detail::check_index(*this, at, index);
  if (index < 0) index += shape()[at];
  dims new_shape(rank() - 1, std::int64_t{0});
  dims new_strides(rank() - 1, std::int64_t{0});
  for (std::size_t from = 0, to = 0; from != rank(); ++from) {
    if (from == at) continue;
    new_shape[to] = shape()[from];
    new_strides[to++] = strides()[from];
  }
  return make_view(std::move(new_shape), std::move(new_strides), storage_offset() + index * strides()[at]);
}

tensor tensor::transpose(std::int64_t first, std::int64_t second) const {
  const std::size_t a = normal_axis(first, rank(), *this);
  const std::size_t b = normal_axis(second, rank(), *this);
  dims new_shape = shape();
  dims new_strides = strides();
  std::swap(new_shape[a], new_shape[b]);
  std::swap(new_strides[a], new_strides[b]);
  return make_view(std::move(new_shape), std::move(new_strides), storage_offset());
}

tensor tensor::permute(const dims& order) const {
  std::array<bool, max_rank> seen{};
  dims new_shape(order.size(), std::int64_t{0});
  dims new_strides(order.size(), std::int64_t{0});
  bool valid = order.size() == rank();
  for (std::size_t axis = 0; valid && axis != order.size(); ++axis) {
    const std::size_t from = normal_axis(order[axis], rank(), *this);
    valid = !std::exchange(seen[from], true);
    new_shape[axis] = shape()[from];
    new_strides[axis] = strides()[from];
  }
  if (!valid) {
    throw_error(errc::bad_shape,
                fmt::format("{} does not list each axis of shape {} once", to_string(order), to_string(shape())));
  }
  return make_view(std::move(new_shape), std::move(new_strides), storage_offset());
}

tensor tensor::view(const dims& wanted) const {
  dims new_shape = detail::complete_shape(*this, wanted);
  dims new_strides;
  if (!detail::view_strides(*this, new_shape, new_strides)) {
    throw_error(errc::bad_shape,
                fmt::format("no view of shape {}: the tensor of shape {} has strides {}; reshape() copies",
                            to_string(new_shape), to_string(shape()), to_string(strides())));
  }
  return make_view(std::move(new_shape), std::move(new_strides), storage_offset());
}

tensor tensor::reshape(const dims& wanted) const {
  dims new_shape = detail::complete_shape(*this, wanted);
  dims new_strides;
  if (detail::view_strides(*this, new_shape, new_strides)) {
    return make_view(std::move(new_shape), std::move(new_strides), storage_offset());
  }
  return clone().view(new_shape);
}

tensor tensor::flatten(std::int64_t first, std::int64_t last) const {
  if (rank() == 0) return reshape({1});
  const std::size_t from = normal_axis(first, rank(), *this);
  const std::size_t to = normal_axis(last, rank(), *this);
  if (from > to) {
    throw_error(errc::bad_shape, fmt::format("flatten from axis {} to {}: the first is after the last", first, last));
  }
  dims new_shape(rank() - (to - from), std::int64_t{1});
  for (std::size_t axis = 0; axis != rank(); ++axis) {
    new_shape[axis <= from ? axis : axis <= to ? from : axis - (to - from)] *= shape()[axis];
  }
  return reshape(new_shape);
}

tensor tensor::unsqueeze(std::int64_t axis) const {
  const std::size_t at = normal_axis(axis, rank() + 1, *this);
  dims new_shape(rank() + 1, std::int64_t{1});
  dims new_strides(rank() + 1, std::int64_t{1});
  for (std::size_t from = 0; from != rank(); ++from) {
    const std::size_t to = from < at ? from : from + 1;
    new_shape[to] = shape()[from];
    new_strides[to] = strides()[from];
  }
  if (at != rank()) new_strides[at] = std::max<std::int64_t>(shape()[at], 1) * strides()[at];
  return make_view(std::move(new_shape), std::move(new_strides), storage_offset());
}

tensor tensor::squeeze() const {
  std::size_t kept = 0;
  dims new_shape(rank(), std::int64_t{0});
  dims new_strides(rank(), std::int64_t{0});
  for (std::size_t axis = 0; axis != rank(); ++axis) {
    if (shape()[axis] == 1) continue;
    new_shape[kept] = shape()[axis];
    new_strides[kept++] = strides()[axis];
  }
  return make_view(dims(new_shape.begin(), kept), dims(new_strides.begin(), kept), storage_offset());
}

tensor tensor::squeeze(std::int64_t axis) const {
  const std::size_t at = normal_axis(axis, std::max<std::size_t>(rank(), 1), *this);
  if (rank() == 0 || shape()[at] != 1) return make_view(shape(), strides(), storage_offset());
  return select(static_cast<std::int64_t>(at), 0);
}

tensor tensor::expand(const dims& wanted) const {
  const tensor view = detail::expanded(*this, wanted);
  return make_view(view.shape(), view.strides(), storage_offset());
}

tensor tensor::as_strided(const dims& new_shape, const dims& new_strides, std::int64_t offset) const {
  const std::int64_t span = detail::spanned_elements(new_shape, new_strides, dtype());
  const auto available = static_cast<std::int64_t>(storage().size() / dtype_size(dtype()));
  if (offset < 0 || span > available || offset > available - span) {
    throw_error(errc::bad_shape,
                fmt::format("shape {} with strides {} at offset {} lies outside of the storage of {} elements",
                            to_string(new_shape), to_string(new_strides), offset, available));
  }
  return make_view(new_shape, new_strides, offset);
}

}  // namespace ferry::inline v0

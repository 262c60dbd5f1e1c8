#include <ferry/ops/joining.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

#include "../tensor/layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

void need_some(std::span<const tensor> all, std::string_view operation) {
  if (all.empty()) throw_error(errc::invalid_argument, fmt::format("{} of no tensors", operation));
}

std::int64_t axis_among(std::span<const tensor> all, std::int64_t axis, std::size_t added) {
  return static_cast<std::int64_t>(normal_axis(axis, all.front().rank() + added, all.front()));
}

}  // namespace
}  // namespace detail

tensor op::cat::compute(const parameters& with, std::span<const tensor> all) {
  const auto axis = static_cast<std::size_t>(with.axis);
  dims shape = all.front().shape();
  shape[axis] = 0;
  for (const tensor& each : all) {
    dims other = each.shape();
    if (other.size() == shape.size()) other[axis] = shape[axis];
    if (other != shape) {
      throw_error(errc::bad_shape, fmt::format("cat along axis {} of tensors of shapes {} and {}", axis,
                                               to_string(all.front().shape()), to_string(each.shape())));
    }
    shape[axis] += each.shape()[axis];
  }
  tensor result = empty(shape, all.front().dtype(), all.front().device());
  std::int64_t begin = 0;
  for (const tensor& each : all) {
    detail::move_elements(each, detail::make_tensor(result.storage(), result.dtype(), each.shape(), result.strides(),
                                                    begin * result.strides()[axis]));
    begin += each.shape()[axis];
  }
  return result;
}

tensor cat(std::span<const tensor> all, std::int64_t axis) {
  detail::need_some(all, "cat");
  const std::int64_t normal = detail::axis_among(all, axis, 0);
  std::vector<std::int64_t> sizes;
  sizes.reserve(all.size());
  for (const tensor& each : all) sizes.push_back(each.rank() == all.front().rank() ? each.size(normal) : 0);
  return run_operation<op::cat>({normal, std::move(sizes)}, all);
}
tensor cat(std::initializer_list<tensor> all, std::int64_t axis) {
  return cat(std::span<const tensor>(all.begin(), all.size()), axis);
}

tensor stack(std::span<const tensor> all, std::int64_t axis) {
  detail::need_some(all, "stack");
  const std::int64_t normal = detail::axis_among(all, axis, 1);
  std::vector<tensor> raised;
  raised.reserve(all.size());
  for (const tensor& each : all) {
    if (each.shape() != all.front().shape()) {
      throw_error(errc::bad_shape, fmt::format("stack of tensors of shapes {} and {}", to_string(all.front().shape()),
                                               to_string(each.shape())));
    }
    raised.push_back(each.unsqueeze(normal));
  }
  return cat(raised, normal);
}
tensor stack(std::initializer_list<tensor> all, std::int64_t axis) {
  return stack(std::span<const tensor>(all.begin(), all.size()), axis);
}

std::vector<tensor> split(const tensor& t, const dims& sizes, std::int64_t axis) {
  const auto normal = static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t));
  const bool negative = std::any_of(sizes.begin(), sizes.end(), [](std::int64_t size) { return size < 0; });
  if (negative || std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}) != t.size(normal)) {
    throw_error(errc::bad_shape, fmt::format("split: the sizes {} do not make up axis {} of a tensor of shape {}",
                                             to_string(sizes), axis, to_string(t.shape())));
  }
  std::vector<tensor> parts;
  parts.reserve(sizes.size());
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    parts.push_back(t.narrow(normal, begin, size));
    begin += size;
  }
  return parts;
}

std::vector<tensor> split(const tensor& t, std::int64_t size, std::int64_t axis) {
  const auto normal = static_cast<std::int64_t>(detail::normal_axis(axis, t.rank(), t));
  if (size <= 0) throw_error(errc::invalid_argument, fmt::format("split: the size is {}; it has to be positive", size));
  const std::int64_t length = t.size(normal);
  std::vector<tensor> parts;
  std::int64_t begin = 0;
  do {  // an empty axis is one part, so that cat() undoes it
    parts.push_back(t.narrow(normal, begin, std::min(size, length - begin)));
    begin += size;
  } while (begin < length);
  return parts;
}

}  // namespace ferry::inline v0

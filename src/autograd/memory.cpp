#include <ferry/autograd/detail/memory.hpp>

#include <algorithm>
#include <vector>

#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/sum.hpp>

#include "../tensor/layout.hpp"

namespace ferry::inline v0::detail {

tensor alias_of(const tensor& t) {
  return make_tensor(t.storage(), t.dtype(), t.shape(), t.strides(), t.storage_offset());
}

bool is_only_owner(const tensor& t) {
  return t.use_count() == 1 && t.storage().use_count() == 1 && t.storage().owns_memory() && t.is_contiguous() &&
         t.nbytes() == t.storage().size();
}

std::int64_t end_of_elements(const dims& shape, const dims& strides, std::int64_t offset) {
  std::int64_t end = offset + 1;
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] == 0) return offset;
    end += (shape[axis] - 1) * strides[axis];
  }
  return end;
}

std::optional<std::size_t> overlapping_axis(const dims& shape, const dims& strides) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] > 1) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end(), [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  std::int64_t reach = 0;  // of the axes so far
  for (const std::size_t axis : axes) {
    if (strides[axis] <= reach) return axis;
    reach += strides[axis] * (shape[axis] - 1);
  }
  return std::nullopt;
}

tensor summed_to(const tensor& gradient, const dims& shape) {
  if (gradient.shape() == shape) return gradient;
  const std::size_t added = gradient.rank() - shape.size();
  std::vector<std::int64_t> axes;
  for (std::size_t axis = 0; axis != gradient.rank(); ++axis) {
    if (axis < added || (shape[axis - added] == 1 && gradient.shape()[axis] != 1))
      axes.push_back(static_cast<std::int64_t>(axis));
  }
  return sum(gradient, dims(axes), true).view(shape);
}

void add_to_part(const tensor& part, const tensor& gradient) {
  const auto overlapping = overlapping_axis(part.shape(), part.strides());
  if (!overlapping) {
    add_(part, gradient);
    return;
  }
  const auto axis = static_cast<std::int64_t>(*overlapping);
  if (part.stride(axis) == 0) return add_to_part(part.slice(axis, 0, 1), sum(gradient, {axis}, true));
  for (std::int64_t i = 0; i != part.size(axis); ++i) add_to_part(part.select(axis, i), gradient.select(axis, i));
}

}  // namespace ferry::inline v0::detail

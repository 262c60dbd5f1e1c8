#include <ferry/autograd/derivative.hpp>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/ops/arithmetic.hpp>
#include <ferry/ops/sum.hpp>

namespace ferry::inline v0::detail {

void operation_node::release_saved() noexcept {
  for (saved_tensor& each : inputs_) each.release();
  for (saved_tensor& each : outputs_) each.release();
}

const saved_tensor& operation_node::saved(const std::vector<saved_tensor>& all, std::size_t number) const {
  if (number < all.size()) return all[number];
  throw_error(errc::invalid_argument,
              "its formula asks for an input or result that its derivative_keeps does not name");
}

void operation_node::refuse_count(std::size_t returned, std::size_t inputs) {
  throw_error(errc::invalid_argument,
              fmt::format("its formula returned {} gradients for {} inputs of the operation", returned, inputs));
}

void operation_node::refuse_unfinished() {
  throw_error(errc::invalid_argument,
              "the operation has thrown while it wrote its target in place, whose elements are not known since");
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
  // Axes along which one element is repeated.
  std::vector<std::int64_t> repeated;
  for (std::size_t axis = 0; axis != part.rank(); ++axis) {
    if (part.strides()[axis] == 0 && part.shape()[axis] > 1) repeated.push_back(static_cast<std::int64_t>(axis));
  }
  if (!repeated.empty()) {
    tensor once = part;
    for (const std::int64_t axis : repeated) once = once.slice(axis, 0, 1);
    return add_to_part(once, sum(gradient, dims(repeated), true));
  }
  // Windows that overlap: one after the other.
  std::int64_t reach = 0;
  dims strides = part.strides();
  std::vector<std::size_t> order;
  for (std::size_t axis = 0; axis != part.rank(); ++axis) {
    if (part.shape()[axis] > 1) order.push_back(axis);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  for (const std::size_t axis : order) {
    if (strides[axis] <= reach) {
      for (std::int64_t i = 0; i != part.shape()[axis]; ++i) {
        const auto at = static_cast<std::int64_t>(axis);
        add_to_part(part.select(at, i), gradient.select(at, i));
      }
      return;
    }
    reach += strides[axis] * (part.shape()[axis] - 1);
  }
  add_(part, gradient);
}

}  // namespace ferry::inline v0::detail

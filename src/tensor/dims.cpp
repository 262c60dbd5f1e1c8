#include <ferry/tensor/dims.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {

void dims::refuse_rank(std::size_t rank) {
  throw_error(errc::bad_shape,
              fmt::format("{} dimensions are more than the {} that a tensor can have", rank, max_rank));
}

void dims::refuse_value() { throw_error(errc::bad_shape, "a size does not fit into 63 bits"); }

std::string to_string(const dims& values) { return fmt::format("[{}]", fmt::join(values.begin(), values.end(), ", ")); }

std::int64_t element_count(std::span<const std::int64_t> shape) {
  std::int64_t count = 1;
  bool overflow = false;
  bool none = false;
  for (const std::int64_t size : shape) {
    if (size < 0) {
      throw_error(errc::bad_shape, fmt::format("size {} in shape [{}] is negative", size, fmt::join(shape, ", ")));
    }
    none = none || size == 0;
    // The product of the other sizes must fit even beside a 0: strides are made from it.
    if (size > 1) overflow = __builtin_mul_overflow(count, size, &count) || overflow;
  }
  if (overflow) {
    throw_error(errc::bad_shape,
                fmt::format("shape [{}] has more elements than fit into 63 bits", fmt::join(shape, ", ")));
  }
  return none ? 0 : count;
}

dims contiguous_strides(std::span<const std::int64_t> shape) {
  static_cast<void>(element_count(shape));  // checks the products below
  dims strides(shape.size(), std::int64_t{1});
  for (std::size_t axis = shape.size(); axis-- > 1;) {
    strides[axis - 1] = strides[axis] * std::max<std::int64_t>(shape[axis], 1);
  }
  return strides;
}

}  // namespace ferry::inline v0

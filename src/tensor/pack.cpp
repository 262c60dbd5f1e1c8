#include <ferry/tensor/pack.hpp>

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/operations.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// The axes that carry distinct elements, smallest stride first; of equal strides the later axis, as in row-major order.
struct carrying_axes {
  std::array<std::size_t, max_rank> axis;  // the first `count`
  std::size_t count = 0;
};

carrying_axes axes_by_stride(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  carrying_axes result;
  for (std::size_t axis = shape.size(); axis-- != 0;) {
    if (shape[axis] > 1 && strides[axis] != 0) result.axis[result.count++] = axis;
  }
  // Insertion sort: the lists are short, and every call runs this.
  for (std::size_t n = 1; n < result.count; ++n) {
    for (std::size_t m = n; m != 0 && strides[result.axis[m]] < strides[result.axis[m - 1]]; --m) {
      std::swap(result.axis[m], result.axis[m - 1]);
    }
  }
  return result;
}

// The distinct elements if they are one dense block, else -1. The product of the sizes is known to fit.
std::int64_t block_elements(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  const carrying_axes axes = axes_by_stride(shape, strides);
  std::int64_t expected = 1;
  for (std::size_t n = 0; n != axes.count; ++n) {
    const std::size_t axis = axes.axis[n];
    if (strides[axis] != expected) return -1;
    expected *= shape[axis];
  }
  return expected;
}

// The block returned by packed_bytes and its writable counterpart.
std::span<std::byte> block_of(const tensor& t) {
  const std::int64_t count = block_elements(t.shape(), t.strides());
  if (count < 0) {
    throw_error(errc::bad_shape, fmt::format("the elements of a tensor of shape {} with strides {} are not one block; "
                                             "pack() it first",
                                             to_string(t.shape()), to_string(t.strides())));
  }
  return {static_cast<std::byte*>(t.data()), static_cast<std::size_t>(count) * dtype_size(t.dtype())};
}

// Row-major strides for the axes that carry no distinct elements, so that later views do not depend on them.
dims canonical(std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  dims result = contiguous_strides(shape);
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] > 1) result[axis] = strides[axis];
  }
  return result;
}

}  // namespace
}  // namespace detail

bool is_packed(const tensor& t) { return detail::block_elements(t.shape(), t.strides()) >= 0; }

tensor pack(const tensor& t) { return t.storage().owns_memory() && is_packed(t) ? t : run_operation<op::pack>({}, t); }
tensor detail::packed_to_send(const tensor& t) {
  const unreported part_of_sending;
  return pack(t);
}

bool detail::become_copy(tensor& t) {
  tensor_body* const body = t.body_;
  if (!body || body->references.load(std::memory_order_acquire) != 1 ||
      body->watchers.load(std::memory_order_acquire) != 1 || body->slot) {
    return false;
  }
  if (body->offset != 0 || !body->bytes.solely_owned()) return false;
  // A part of a block would keep all of it, which the receiver does not count as received.
  const std::int64_t count = block_elements(body->shape, body->strides);
  if (count < 0 || static_cast<std::size_t>(count) * dtype_size(body->type) != body->bytes.size()) return false;
  // A weak handle may have made a handle, and be gone, since both were counted. None can while there is no handle.
  std::uint32_t only = 1;
  if (!body->references.compare_exchange_strong(only, 0, std::memory_order_acq_rel)) return false;
  const bool watched = body->watchers.load(std::memory_order_acquire) != 1;
  body->references.store(1, std::memory_order_release);
  if (watched) return false;
  body->strides = canonical(body->shape, body->strides);
  body->bytes.forget_writes();
  return true;
}

tensor op::pack::compute(const parameters&, const tensor& t) {
  dims shape = t.shape();  // of the distinct elements
  dims strides = contiguous_strides(shape);
  std::int64_t expected = 1;
  const detail::carrying_axes axes = detail::axes_by_stride(t.shape(), t.strides());
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] > 1) strides[axis] = 0;
  }
  for (std::size_t n = 0; n != axes.count; ++n) {
    strides[axes.axis[n]] = expected;
    expected *= shape[axes.axis[n]];
  }
  tensor result = empty_strided(shape, strides, t.dtype(), t.device());
  for (std::size_t axis = 0; axis != shape.size(); ++axis) {
    if (shape[axis] > 1 && strides[axis] == 0) shape[axis] = 1;
  }
  detail::move_elements(detail::make_tensor(t.storage(), t.dtype(), shape, t.strides(), t.storage_offset()),
                        detail::make_tensor(result.storage(), t.dtype(), shape, strides, 0));
  return result;
}

std::span<const std::byte> packed_bytes(const tensor& t) { return detail::block_of(t); }
std::span<std::byte> writable_packed_bytes(const tensor& t) { return detail::block_of(t); }

std::uint64_t packed_size(dtype type, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides) {
  if (dtype_size(type) == 0) {
    throw_error(errc::bad_dtype, fmt::format("{} is not the number of a dtype", static_cast<int>(type)));
  }
  if (shape.size() > max_rank || shape.size() != strides.size()) {
    throw_error(errc::bad_shape, fmt::format("a tensor with {} sizes and {} strides: both must be the same, at most {}",
                                             shape.size(), strides.size(), max_rank));
  }
  // nbytes() must fit although axes of stride 0 occupy no memory.
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(shape), static_cast<std::int64_t>(dtype_size(type)), &bytes)) {
    throw_error(errc::bad_shape, fmt::format("shape [{}] of {} has more bytes than fit into 63 bits",
                                             fmt::join(shape, ", "), dtype_name(type)));
  }
  const bool negative = std::any_of(strides.begin(), strides.end(), [](std::int64_t stride) { return stride < 0; });
  const std::int64_t count = negative ? -1 : detail::block_elements(shape, strides);
  if (count < 0) {
    throw_error(errc::bad_shape, fmt::format("strides [{}] of shape [{}] do not make one dense block",
                                             fmt::join(strides, ", "), fmt::join(shape, ", ")));
  }
  return static_cast<std::uint64_t>(count) * dtype_size(type);
}

tensor empty_packed(dtype type, std::span<const std::int64_t> shape, std::span<const std::int64_t> strides,
                    device where) {
  const std::uint64_t bytes = packed_size(type, shape, strides);
  return detail::make_tensor(storage::allocate(bytes, where), type, dims(shape), detail::canonical(shape, strides), 0);
}

tensor detail::packed_over(storage block, dtype type, std::span<const std::int64_t> shape,
                           std::span<const std::int64_t> strides) {
  return make_tensor(std::move(block), type, dims(shape), canonical(shape, strides), 0);
}

}  // namespace ferry::inline v0

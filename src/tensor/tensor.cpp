#include <ferry/tensor/tensor.hpp>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/tensor/hooks.hpp>
#include <ferry/tensor/operations.hpp>

#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {

void* tensor_body::operator new(std::size_t size) { return cpu_allocate(size); }
void tensor_body::operator delete(void* memory, std::size_t size) noexcept { cpu_deallocate(memory, size); }

void destroy(tensor_body* body) noexcept {
  // While weak handles keep the body, nothing else is kept.
  body->slot.reset();
  body->bytes = {};
  drop_watcher(body);
}

void drop_watcher(tensor_body* body) noexcept {
  // Only one is left, and it is this thread's: no other thread can add or drop one, so the decrement is spared.
  if (body->watchers.load(std::memory_order_acquire) == 1 ||
      body->watchers.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    delete body;
  }
}

bool revive(tensor_body* body) noexcept {
  std::uint32_t count = body->references.load(std::memory_order_relaxed);
  while (count != 0) {
    if (body->references.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel,
                                               std::memory_order_relaxed)) {
      return true;
    }
  }
  return false;
}

tensor adopt_body(tensor_body* body) noexcept {
  tensor result;
  result.body_ = body;
  return result;
}

void refuse_undefined() {
  throw_error(errc::invalid_argument,
              "the tensor is undefined (default-constructed or moved from); give it a value first");
}

void refuse_dtype(dtype wanted, const tensor& t) {
  throw_error(errc::bad_dtype, fmt::format("elements of {} were asked for, but the tensor of shape {} holds {}",
                                           dtype_name(wanted), to_string(t.shape()), dtype_name(t.dtype())));
}

void check_index(const tensor& t, std::size_t axis, std::int64_t index) {
  const std::int64_t size = t.shape()[axis];
  if (index >= -size && index < size) return;
  throw_error(errc::bad_shape,
              fmt::format("index {} is out of range for axis {} of shape {}", index, axis, to_string(t.shape())));
}

void refuse_index_count(const tensor& t, std::size_t count) {
  throw_error(errc::bad_shape,
              fmt::format("{} indices were given for shape {}, which takes {}", count, to_string(t.shape()), t.rank()));
}

void refuse_host_access(const tensor& t) {
  throw_error(errc::bad_device,
              fmt::format("the elements of a tensor on {} cannot be reached from the host: move it with "
                          "to(ferry::device{{}}) first",
                          to_string(t.device())));
}

tensor make_tensor(storage bytes, dtype type, dims shape, dims strides, std::int64_t offset) {
  auto* body = new tensor_body;
  tensor result = adopt_body(body);
  body->type = type;
  body->count = element_count(shape);
  if (body->count == 0) {  // without elements the offset is meaningless, and may lie outside the storage
    offset = 0;
    strides = contiguous_strides(shape);
  }
  body->offset = offset;
  body->bytes = std::move(bytes);
  body->shape = std::move(shape);
  body->strides = std::move(strides);
  std::int64_t expected = 1;
  for (std::size_t axis = body->shape.size(); axis-- != 0 && body->count != 0;) {
    if (body->shape[axis] == 1) continue;
    if (body->strides[axis] != expected) body->contiguous = false;
    expected *= body->shape[axis];
  }
  return result;
}

}  // namespace detail

std::int64_t tensor::size(std::int64_t axis) const { return shape()[detail::normal_axis(axis, rank(), *this)]; }
std::int64_t tensor::stride(std::int64_t axis) const { return strides()[detail::normal_axis(axis, rank(), *this)]; }

bool tensor::requires_grad() const { return slot() && slot()->requires_grad(*this); }

void tensor::mark_written() const {
  if (slot()) {
    const tensor* const target = this;
    detail::operation_reports({std::type_identity<op::external_write>{}, {}}, {&target, 1}).mutated();
  }
  storage().bump_version();
}

tensor tensor::contiguous() const { return is_contiguous() ? *this : clone(); }

}  // namespace ferry::inline v0

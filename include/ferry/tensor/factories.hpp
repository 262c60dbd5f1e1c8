#pragma once

// New tensors.

#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

// All of them throw errc::bad_shape (negative sizes, too many elements), errc::out_of_memory, errc::bad_device and
// errc::device_failure. On a device, the tensor is made and filled in the order of the calling thread's current stream
// of it; the host does not wait.

/// Uninitialised elements, contiguous.
[[nodiscard]] tensor empty(const dims& shape, dtype type = dtype::f32, device where = {});
/// Uninitialised elements laid out by `strides` (in elements, not negative), over a storage just large enough.
[[nodiscard]] tensor empty_strided(const dims& shape, const dims& strides, dtype type = dtype::f32, device where = {});
[[nodiscard]] tensor zeros(const dims& shape, dtype type = dtype::f32, device where = {});
[[nodiscard]] tensor ones(const dims& shape, dtype type = dtype::f32, device where = {});
[[nodiscard]] tensor full(const dims& shape, const scalar& value, dtype type = dtype::f32, device where = {});
/// Of the shape, dtype and device of `t`, contiguous; empty_like is uninitialised.
[[nodiscard]] tensor empty_like(const tensor& t);
[[nodiscard]] tensor zeros_like(const tensor& t);
[[nodiscard]] tensor ones_like(const tensor& t);
/// The numbers start, start + step, ... below stop (above, for a negative step), one axis. i64 if all arguments are
/// integers, else f32, unless a dtype is given. Throws errc::invalid_argument for step 0 or values that are not finite.
[[nodiscard]] tensor arange(const scalar& start, const scalar& stop, const scalar& step = 1);
[[nodiscard]] tensor arange(const scalar& start, const scalar& stop, const scalar& step, dtype type, device where = {});
[[nodiscard]] tensor arange(const scalar& stop);

namespace detail {
tensor from_elements(const void* elements, std::size_t count, dtype type, const dims* shape);
[[noreturn]] void refuse_ragged(std::size_t width, std::size_t other);
}  // namespace detail

/// A copy of the elements, one axis.
template <element T>
[[nodiscard]] tensor from_span(std::span<const T> elements) {
  return detail::from_elements(elements.data(), elements.size(), dtype_of<T>, nullptr);
}
/// A copy of the elements, in row-major order. Throws errc::bad_shape if `shape` has another number of elements.
template <element T>
[[nodiscard]] tensor from_span(std::span<const T> elements, const dims& shape) {
  return detail::from_elements(elements.data(), elements.size(), dtype_of<T>, &shape);
}
template <element T>
  requires(!std::same_as<T, bool>)  // std::vector<bool> has no bools in memory
[[nodiscard]] tensor from_vector(const std::vector<T>& elements) {
  return from_span(std::span<const T>(elements));
}
template <element T>
  requires(!std::same_as<T, bool>)
[[nodiscard]] tensor from_vector(const std::vector<T>& elements, const dims& shape) {
  return from_span(std::span<const T>(elements), shape);
}
/// tensor_of({1.f, 2.f}): one axis.
template <element T>
[[nodiscard]] tensor tensor_of(std::initializer_list<T> elements) {
  return from_span(std::span<const T>(elements.begin(), elements.size()));
}
/// tensor_of({{1, 2}, {3, 4}}): two axes. Throws errc::bad_shape if the rows differ in length.
template <element T>
[[nodiscard]] tensor tensor_of(std::initializer_list<std::initializer_list<T>> rows);
/// One element, no axes.
template <element T>
[[nodiscard]] tensor tensor_of(T value) {
  return detail::from_elements(&value, 1, dtype_of<T>, nullptr).view(dims{});
}

/// A tensor over foreign memory, contiguous, without a copy. `owner` is released when the last tensor over it is
/// destroyed, on whatever thread; without an owner the memory must outlive the tensor and all its views (a call that
/// sends such a tensor copies it first). Throws errc::invalid_argument for a misaligned or missing pointer.
[[nodiscard]] tensor from_blob(void* data, const dims& shape, dtype type, std::shared_ptr<const void> owner = nullptr,
                               device where = {});
/// The same with strides, in elements, none negative.
[[nodiscard]] tensor from_blob(void* data, const dims& shape, const dims& strides, dtype type,
                               std::shared_ptr<const void> owner = nullptr, device where = {});
/// The same with a function that is called once with `data` when it is no longer needed, also if this throws.
template <class Deleter>
  requires std::invocable<Deleter&, void*>
[[nodiscard]] tensor from_blob(void* data, const dims& shape, dtype type, Deleter deleter, device where = {}) {
  return from_blob(data, shape, type, std::shared_ptr<void>(data, std::move(deleter)), where);
}

template <element T>
tensor tensor_of(std::initializer_list<std::initializer_list<T>> rows) {
  const std::size_t width = rows.size() == 0 ? 0 : rows.begin()->size();
  const dims shape{rows.size(), width};
  tensor result = empty(shape, dtype_of<T>);
  T* out = result.template data<T>();
  for (const auto& row : rows) {
    if (row.size() != width) detail::refuse_ragged(width, row.size());
    for (const T& value : row) *out++ = value;
  }
  return result;
}

}  // namespace ferry::inline v0

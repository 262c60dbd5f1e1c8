#pragma once

// Views a tensor's elements as a std::span, without copying.

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include <ferry/base/error.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// The elements in row-major order; T may be const. Valid while the storage of `t` lives; after writing through the
/// span, call t.mark_written(). A parameter of type std::span<const T> needs no adapter. Throws errc::bad_dtype unless
/// the elements are of type T, errc::bad_shape unless they are contiguous (take t.contiguous()), errc::bad_device
/// unless they are on the CPU. Thread-safe.
template <element T>
[[nodiscard]] std::span<T> as_span(const tensor& t) {
  if (!t.device().is_cpu()) {
    throw_error(errc::bad_device, "as_span: the tensor is on " + to_string(t.device()) + "; copy it to the CPU first");
  }
  auto* first = t.template data<std::remove_const_t<T>>();
  if (!t.is_contiguous()) {
    throw_error(errc::bad_shape, "as_span: the elements of shape " + to_string(t.shape()) + " with strides " +
                                     to_string(t.strides()) + " are not contiguous; take contiguous() of it first");
  }
  return {first, static_cast<std::size_t>(t.numel())};
}

}  // namespace ferry::inline v0

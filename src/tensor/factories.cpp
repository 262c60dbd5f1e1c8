#include <ferry/tensor/factories.hpp>

#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/device/traits.hpp>
#include <ferry/tensor/visit.hpp>

#include "convert.hpp"
#include "layout.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

__extension__ using int128 = __int128;

std::size_t bytes_of(const dims& shape, const dims& strides, dtype type) {
  if (dtype_size(type) == 0) {
    throw_error(errc::bad_dtype, fmt::format("{} is not the number of a dtype", static_cast<int>(type)));
  }
  return static_cast<std::size_t>(detail::spanned_elements(shape, strides, type)) * dtype_size(type);
}

}  // namespace
}  // namespace detail

tensor empty(const dims& shape, dtype type, device where) {
  return empty_strided(shape, contiguous_strides(shape), type, where);
}

tensor empty_strided(const dims& shape, const dims& strides, dtype type, device where) {
  return detail::make_tensor(storage::allocate(detail::bytes_of(shape, strides, type), where), type, shape, strides, 0);
}

tensor zeros(const dims& shape, dtype type, device where) {
  tensor result = empty(shape, type, where);
  if (detail::on_host(where)) {
    if (result.nbytes() != 0) std::memset(result.data(), 0, result.nbytes());  // zero bits are zero in all dtypes
  } else {
    detail::fill_anywhere(result, 0);
  }
  return result;
}

tensor full(const dims& shape, const scalar& value, dtype type, device where) {
  tensor result = empty(shape, type, where);
  detail::fill_anywhere(result, value);
  return result;
}

tensor ones(const dims& shape, dtype type, device where) { return full(shape, 1, type, where); }
tensor empty_like(const tensor& t) { return empty(t.shape(), t.dtype(), t.device()); }
tensor zeros_like(const tensor& t) { return zeros(t.shape(), t.dtype(), t.device()); }
tensor ones_like(const tensor& t) { return ones(t.shape(), t.dtype(), t.device()); }

tensor arange(const scalar& start, const scalar& stop, const scalar& step, dtype type, device where) {
  const auto refuse = [](const std::string& why) { throw_error(errc::invalid_argument, "arange: " + why); };
  for (const scalar* value : {&start, &stop, &step}) {
    if (value->type() == scalar::kind::complex || !std::isfinite(value->real()))
      refuse("the bounds must be finite and real");
  }
  if (step.real() == 0) refuse("the step must not be 0");
  const bool exact = start.is_integral() && stop.is_integral() && step.is_integral();
  std::int64_t count = 0;
  if (exact) {
    // In 128 bits: the distance of two i64 does not fit into one.
    const auto distance = static_cast<detail::int128>(stop.integer()) - start.integer();
    const auto stride = static_cast<detail::int128>(step.integer());
    const auto steps = (distance + stride - (stride > 0 ? 1 : -1)) / stride;
    if (steps > std::numeric_limits<std::int64_t>::max()) refuse("too many elements");
    count = steps > 0 ? static_cast<std::int64_t>(steps) : 0;
  } else {
    const double steps = std::ceil((stop.real() - start.real()) / step.real());
    if (!(steps < 9e18)) refuse("too many elements");
    count = steps > 0 ? static_cast<std::int64_t>(steps) : 0;
  }
  tensor result = empty({count}, type);
  visit_dtype(type, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* out = result.data<T>();
    for (std::int64_t i = 0; i != count; ++i) {
      // Unsigned: i * step alone may not fit although the sum does.
      const auto sum = static_cast<std::uint64_t>(start.integer()) +
                       static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(step.integer());
      out[i] = exact ? detail::narrow_to<T>(static_cast<std::int64_t>(sum))
                     : detail::narrow_to<T>(start.real() + static_cast<double>(i) * step.real());
    }
  });
  return result.to(where);
}

tensor arange(const scalar& start, const scalar& stop, const scalar& step) {
  const bool exact = start.is_integral() && stop.is_integral() && step.is_integral();
  return arange(start, stop, step, exact ? dtype::i64 : dtype::f32);
}

tensor arange(const scalar& stop) { return arange(0, stop, 1); }

tensor from_blob(void* data, const dims& shape, dtype type, std::shared_ptr<const void> owner, device where) {
  return from_blob(data, shape, contiguous_strides(shape), type, std::move(owner), where);
}

tensor from_blob(void* data, const dims& shape, const dims& strides, dtype type, std::shared_ptr<const void> owner,
                 device where) {
  const std::size_t bytes = detail::bytes_of(shape, strides, type);
  check_device(where);
  if (!data && bytes != 0) {
    throw_error(errc::invalid_argument, fmt::format("from_blob: a null pointer for shape {}", to_string(shape)));
  }
  const std::size_t alignment = visit_dtype(type, [](auto tag) { return alignof(typename decltype(tag)::type); });
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    throw_error(
        errc::invalid_argument,
        fmt::format("from_blob: the pointer is not aligned to the {} bytes that {} needs; copy the data into a new "
                    "tensor",
                    alignment, dtype_name(type)));
  }
  return detail::make_tensor(storage::foreign(data, bytes, where, std::move(owner)), type, shape, strides, 0);
}

}  // namespace ferry::inline v0

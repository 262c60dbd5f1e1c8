#pragma once

// Arithmetic on elements of the types that operations compute with.

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/scalar.hpp>

namespace ferry::inline v0::detail {

/// Calls f(std::type_identity<T>{}); the type is one of element_set::arithmetic, which the operation's needs have made sure.
template <class F>
decltype(auto) visit_arithmetic(dtype type, F&& f) {
  switch (type) {
    case dtype::i32: return std::forward<F>(f)(std::type_identity<std::int32_t>{});
    case dtype::i64: return std::forward<F>(f)(std::type_identity<std::int64_t>{});
    case dtype::f32: return std::forward<F>(f)(std::type_identity<float>{});
    default: return std::forward<F>(f)(std::type_identity<double>{});
  }
}

// Signed overflow is undefined, so integers are computed as their unsigned types: they wrap.
template <class T>
T plus(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) + static_cast<bits>(b));
  } else {
    return a + b;
  }
}
template <class T>
T times(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    using bits = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<bits>(a) * static_cast<bits>(b));
  } else {
    return a * b;
  }
}

/// Throws errc::bad_dtype unless elements of `type` can be computed with `value`.
void need_fitting(const scalar& value, dtype type, std::string_view operation);

/// The value as an element; need_fitting() holds.
template <class T>
T scalar_as(const scalar& value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(value.integer());
  } else {
    return static_cast<T>(value.real());
  }
}

}  // namespace ferry::inline v0::detail

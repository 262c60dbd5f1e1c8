#pragma once

// The types of elements that operations compute with, and their arithmetic.

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/scalar.hpp>

#include "wrapping.hpp"

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

/// The same for one of element_set::floating.
template <class F>
decltype(auto) visit_floating(dtype type, F&& f) {
  if (type == dtype::f32) return std::forward<F>(f)(std::type_identity<float>{});
  return std::forward<F>(f)(std::type_identity<double>{});
}

inline bool is_one(const scalar& value) { return value.is_integral() && value.integer() == 1; }

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

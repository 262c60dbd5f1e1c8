#include "reduce_elements.hpp"

#include <complex>
#include <cstdint>
#include <type_traits>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/tensor/visit.hpp>

namespace ferry::inline v0::detail {
namespace {

template <class T>
inline constexpr bool is_complex_element = false;
template <class T>
inline constexpr bool is_complex_element<std::complex<T>> = true;
// f16, bf16 and f8: calculated as float.
template <class T>
inline constexpr bool is_narrow_element = !std::is_arithmetic_v<T> && !is_complex_element<T>;

// Wraps around, as integers of tensors do.
template <class T, class F>
T combine_wrapping(T a, T b, F f) {
  using wide = std::conditional_t<(sizeof(T) < sizeof(std::uint32_t)), std::uint32_t, std::make_unsigned_t<T>>;
  return static_cast<T>(f(static_cast<wide>(a), static_cast<wide>(b)));
}

template <class T, class F>
T combine_one(T first, T second, F f) noexcept {
  if constexpr (is_narrow_element<T>) {
    return T(f(static_cast<float>(second), static_cast<float>(first)));
  } else {
    return f(second, first);
  }
}

// In place.
template <class T>
struct combine_into {
  T* into;
  const T* other;
  std::size_t count;
  template <class F>
  void operator()(F f) const noexcept {
    T* const result = into;
    for (std::size_t i = 0; i != count; ++i) result[i] = combine_one(result[i], other[i], f);
  }
};
// To another place.
template <class T>
struct combine_apart {
  T* into;
  const T* first;
  const T* second;
  std::size_t count;
  template <class F>
  void operator()(F f) const noexcept {
    T* __restrict const result = into;
    for (std::size_t i = 0; i != count; ++i) result[i] = combine_one(first[i], second[i], f);
  }
};

// What compares with a NaN is false: of two, of which one is, the result is that one.
template <class T>
constexpr bool is_nan(T value) noexcept {
  if constexpr (std::is_floating_point_v<T>) return value != value;
  return false;
}

template <class T, class All>
void reduce_typed(reduce_op op, const All& combine_all) noexcept {
  constexpr bool wraps = std::is_integral_v<T> && !std::is_same_v<T, bool>;
  switch (op) {
    case reduce_op::sum:
    case reduce_op::avg:
      if constexpr (wraps) {
        combine_all([](T a, T b) { return combine_wrapping(a, b, [](auto x, auto y) { return x + y; }); });
      } else if constexpr (std::is_same_v<T, bool>) {
        combine_all([](bool a, bool b) { return a || b; });
      } else {
        combine_all([](auto a, auto b) { return a + b; });
      }
      return;
    case reduce_op::prod:
      if constexpr (wraps) {
        combine_all([](T a, T b) { return combine_wrapping(a, b, [](auto x, auto y) { return x * y; }); });
      } else if constexpr (std::is_same_v<T, bool>) {
        combine_all([](bool a, bool b) { return a && b; });
      } else {
        combine_all([](auto a, auto b) { return a * b; });
      }
      return;
    case reduce_op::min:
      if constexpr (!is_complex_element<T>) combine_all([](auto a, auto b) { return b < a || is_nan(b) ? b : a; });
      return;
    case reduce_op::max:
      if constexpr (!is_complex_element<T>) combine_all([](auto a, auto b) { return a < b || is_nan(b) ? b : a; });
      return;
  }
}

}  // namespace

void check_reduction(dtype type, reduce_op op) {
  if (op > reduce_op::prod)
    throw_error(errc::invalid_argument, fmt::format("there is no reduce_op with the number {}", static_cast<int>(op)));
  visit_dtype(type, [&]<class T>(std::type_identity<T>) {
    if (op == reduce_op::avg && std::is_integral_v<T>) {
      throw_error(
          errc::bad_dtype,
          fmt::format("an average of {} elements is not of their type: use sum, or convert them", dtype_name(type)));
    }
    if ((op == reduce_op::min || op == reduce_op::max) && is_complex_element<T>) {
      throw_error(errc::bad_dtype,
                  fmt::format("{} elements have no order: no {} of them", dtype_name(type), to_string(op)));
    }
  });
}

void reduce_elements(dtype type, reduce_op op, void* into, const void* other, std::size_t count) noexcept {
  visit_dtype(type, [&]<class T>(std::type_identity<T>) {
    reduce_typed<T>(op, combine_into<T>{static_cast<T*>(into), static_cast<const T*>(other), count});
  });
}

void combine_elements(dtype type, reduce_op op, void* into, const void* first, const void* second,
                      std::size_t count) noexcept {
  visit_dtype(type, [&]<class T>(std::type_identity<T>) {
    reduce_typed<T>(op, combine_apart<T>{static_cast<T*>(into), static_cast<const T*>(first),
                                         static_cast<const T*>(second), count});
  });
}

void divide_elements(dtype type, void* into, std::size_t count, int n) noexcept {
  visit_dtype(type, [&]<class T>(std::type_identity<T>) {
    T* const elements = static_cast<T*>(into);
    for (std::size_t i = 0; i != count; ++i) {
      if constexpr (is_narrow_element<T>) {
        elements[i] = T(static_cast<float>(elements[i]) / static_cast<float>(n));
      } else if constexpr (is_complex_element<T>) {
        elements[i] /= static_cast<typename T::value_type>(n);
      } else if constexpr (!std::is_integral_v<T>) {
        elements[i] /= static_cast<T>(n);
      }
    }
  });
}

}  // namespace ferry::inline v0::detail

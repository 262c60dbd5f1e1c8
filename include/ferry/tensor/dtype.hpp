#pragma once

// Element types of tensors.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include <ferry/tensor/small_float.hpp>

namespace ferry::inline v0 {

/// The type of a tensor's elements. The numbers are stable: they are sent on the wire. Elements are little-endian
/// there.
enum class dtype : std::uint8_t {
  bool_ = 1,  ///< one byte, 0 or 1
  u8 = 2,
  i8 = 3,
  i16 = 4,
  i32 = 5,
  i64 = 6,
  f16 = 7,   ///< IEEE binary16 (float16)
  bf16 = 8,  ///< bfloat16
  f32 = 9,
  f64 = 10,
  c64 = 11,      ///< std::complex<float>: real, then imaginary part
  c128 = 12,     ///< std::complex<double>
  f8_e4m3 = 13,  ///< OCP FP8 E4M3 without infinities (float8_e4m3)
  f8_e5m2 = 14,  ///< OCP FP8 E5M2 (float8_e5m2)
};

/// Bytes of one element; 0 for a number that is not a dtype.
[[nodiscard]] constexpr std::size_t dtype_size(dtype type) noexcept {
  switch (type) {
    case dtype::bool_:
    case dtype::u8:
    case dtype::i8:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2: return 1;
    case dtype::i16:
    case dtype::f16:
    case dtype::bf16: return 2;
    case dtype::i32:
    case dtype::f32: return 4;
    case dtype::i64:
    case dtype::f64:
    case dtype::c64: return 8;
    case dtype::c128: return 16;
  }
  return 0;
}

/// "bool", "u8", ... "f8_e5m2"; "unknown" for a number that is not a dtype.
[[nodiscard]] constexpr std::string_view dtype_name(dtype type) noexcept {
  switch (type) {
    case dtype::bool_: return "bool";
    case dtype::u8: return "u8";
    case dtype::i8: return "i8";
    case dtype::i16: return "i16";
    case dtype::i32: return "i32";
    case dtype::i64: return "i64";
    case dtype::f16: return "f16";
    case dtype::bf16: return "bf16";
    case dtype::f32: return "f32";
    case dtype::f64: return "f64";
    case dtype::c64: return "c64";
    case dtype::c128: return "c128";
    case dtype::f8_e4m3: return "f8_e4m3";
    case dtype::f8_e5m2: return "f8_e5m2";
  }
  return "unknown";
}

[[nodiscard]] constexpr bool is_floating_point(dtype type) noexcept {
  switch (type) {
    case dtype::f16:
    case dtype::bf16:
    case dtype::f32:
    case dtype::f64:
    case dtype::f8_e4m3:
    case dtype::f8_e5m2: return true;
    default: return false;
  }
}
[[nodiscard]] constexpr bool is_complex(dtype type) noexcept { return type == dtype::c64 || type == dtype::c128; }
/// Integers, without bool.
[[nodiscard]] constexpr bool is_integral(dtype type) noexcept { return type >= dtype::u8 && type <= dtype::i64; }

/// The dtype of a number read off the wire; empty if there is none.
[[nodiscard]] constexpr std::optional<dtype> dtype_from_code(std::uint8_t code) noexcept {
  if (dtype_size(static_cast<dtype>(code)) == 0) return std::nullopt;
  return static_cast<dtype>(code);
}

/// The dtype whose elements are of the C++ type T. Undefined for other types.
template <class T>
struct element_traits;

/// std::complex and other complex types of that layout. Detected by members, since `<complex>` is a heavy header.
template <class T>
concept complex_number = requires(const T& number) {
  typename T::value_type;
  { number.real() } -> std::convertible_to<typename T::value_type>;
  { number.imag() } -> std::convertible_to<typename T::value_type>;
  T(number.real(), number.imag());
} && sizeof(T) == 2 * sizeof(typename T::value_type) && std::is_trivially_copyable_v<T>;

template <complex_number T>
  requires std::same_as<typename T::value_type, float>
struct element_traits<T> {
  static constexpr dtype type = dtype::c64;
};
template <complex_number T>
  requires std::same_as<typename T::value_type, double>
struct element_traits<T> {
  static constexpr dtype type = dtype::c128;
};

template <>
struct element_traits<bool> {
  static constexpr dtype type = dtype::bool_;
};
template <>
struct element_traits<std::uint8_t> {
  static constexpr dtype type = dtype::u8;
};
template <>
struct element_traits<std::int8_t> {
  static constexpr dtype type = dtype::i8;
};
template <>
struct element_traits<std::int16_t> {
  static constexpr dtype type = dtype::i16;
};
template <>
struct element_traits<std::int32_t> {
  static constexpr dtype type = dtype::i32;
};
template <>
struct element_traits<long> {
  static constexpr dtype type = dtype::i64;
};
template <>
struct element_traits<long long> {
  static constexpr dtype type = dtype::i64;
};
template <>
struct element_traits<float16> {
  static constexpr dtype type = dtype::f16;
};
template <>
struct element_traits<bfloat16> {
  static constexpr dtype type = dtype::bf16;
};
template <>
struct element_traits<float> {
  static constexpr dtype type = dtype::f32;
};
template <>
struct element_traits<double> {
  static constexpr dtype type = dtype::f64;
};
template <>
struct element_traits<float8_e4m3> {
  static constexpr dtype type = dtype::f8_e4m3;
};
template <>
struct element_traits<float8_e5m2> {
  static constexpr dtype type = dtype::f8_e5m2;
};
static_assert(sizeof(bool) == 1 && sizeof(long) == 8, "ferry supports LP64 platforms");

/// A type that tensor elements can have.
template <class T>
concept element = requires { element_traits<std::remove_cv_t<T>>::type; };

template <element T>
inline constexpr dtype dtype_of = element_traits<std::remove_cv_t<T>>::type;

}  // namespace ferry::inline v0

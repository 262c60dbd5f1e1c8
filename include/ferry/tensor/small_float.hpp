#pragma once

// Floating-point types narrower than float. They store and convert; arithmetic is done in float, to which they convert
// implicitly. From float they round to the nearest value, ties to even; from double they round twice, through float.

#include <bit>
#include <cstdint>
#include <type_traits>

namespace ferry::inline v0 {
namespace detail {

// `Exponent` and `Mantissa` are widths in bits. Without infinities (`HasInfinity` false) the highest exponent also
// holds numbers, the only NaN there has all mantissa bits set, and values out of range become NaN.
template <unsigned Exponent, unsigned Mantissa, bool HasInfinity>
struct small_float {
  static constexpr unsigned drop = 23 - Mantissa;  // mantissa bits of a float that do not fit
  static constexpr int bias = (1 << (Exponent - 1)) - 1;
  static constexpr std::uint32_t top = ((1U << Exponent) - 1) << Mantissa;  // exponent bits all set
  static constexpr std::uint32_t nan = top | (HasInfinity ? 1U << (Mantissa - 1) : (1U << Mantissa) - 1);
  static constexpr std::uint32_t overflow = HasInfinity ? top : nan;
  static constexpr std::uint32_t sign = 1U << (Exponent + Mantissa);

  static constexpr std::uint32_t round_off(std::uint32_t value, unsigned bits) {
    return (value + (1U << (bits - 1)) - 1 + ((value >> bits) & 1U)) >> bits;
  }

  static constexpr std::uint32_t encode(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t sign_bit = (bits >> 31U) != 0 ? sign : 0;
    const std::uint32_t magnitude = bits & 0x7fff'ffffU;
    if (magnitude > 0x7f80'0000U) return sign_bit | nan;
    const bool is_normal = (magnitude >> 23U) != 0;
    const int exponent = (is_normal ? static_cast<int>(magnitude >> 23U) : 1) - 127 + bias;
    const std::uint32_t mantissa = (magnitude & 0x7f'ffffU) | (is_normal ? 0x80'0000U : 0);
    std::uint32_t result = 0;
    if (exponent >= 1 && is_normal) {
      // Rounding may carry into the exponent, which is then correct as well.
      result = round_off((static_cast<std::uint32_t>(exponent) << 23U) | (magnitude & 0x7f'ffffU), drop);
      if (result >= overflow) result = overflow;
    } else {
      const int bits_off = static_cast<int>(drop) + 1 - exponent;
      if (bits_off < 25) result = round_off(mantissa, static_cast<unsigned>(bits_off));
    }
    return sign_bit | result;
  }

  static constexpr float decode(std::uint32_t bits) {
    const std::uint32_t sign_bit = (bits & sign) != 0 ? 0x8000'0000U : 0;
    const std::uint32_t magnitude = bits & (sign - 1);
    if constexpr (Exponent == 8)
      return std::bit_cast<float>(sign_bit | (magnitude << drop));  // the upper part of a float
    if (HasInfinity ? magnitude > top : magnitude == nan) return std::bit_cast<float>(sign_bit | 0x7fc0'0000U);
    if (HasInfinity && magnitude == top) return std::bit_cast<float>(sign_bit | 0x7f80'0000U);
    if ((magnitude >> Mantissa) != 0) {
      const auto shift = static_cast<std::uint32_t>(127 - bias) << 23U;
      return std::bit_cast<float>(sign_bit | ((magnitude << drop) + shift));
    }
    const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(128 - bias - static_cast<int>(Mantissa)) << 23U);
    const float value = static_cast<float>(magnitude) * unit;
    return sign_bit != 0 ? -value : value;
  }
};

}  // namespace detail

/// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits; largest 65504.
struct float16 {
  std::uint16_t bits = 0;
  constexpr float16() noexcept = default;
  template <class T>
    requires std::is_arithmetic_v<T>
  explicit constexpr float16(T value) noexcept
      : bits(static_cast<std::uint16_t>(detail::small_float<5, 10, true>::encode(static_cast<float>(value)))) {}
  static constexpr float16 from_bits(std::uint16_t value) noexcept {
    float16 result;
    result.bits = value;
    return result;
  }
  constexpr operator float() const noexcept { return detail::small_float<5, 10, true>::decode(bits); }  // NOLINT
};

/// bfloat16: the upper half of a float, 8 exponent bits, 7 mantissa bits.
struct bfloat16 {
  std::uint16_t bits = 0;
  constexpr bfloat16() noexcept = default;
  template <class T>
    requires std::is_arithmetic_v<T>
  explicit constexpr bfloat16(T value) noexcept
      : bits(static_cast<std::uint16_t>(detail::small_float<8, 7, true>::encode(static_cast<float>(value)))) {}
  static constexpr bfloat16 from_bits(std::uint16_t value) noexcept {
    bfloat16 result;
    result.bits = value;
    return result;
  }
  constexpr operator float() const noexcept { return detail::small_float<8, 7, true>::decode(bits); }  // NOLINT
};

/// OCP FP8 E4M3 ("fn"): 4 exponent bits, 3 mantissa bits, no infinity; largest 448, beyond it NaN.
struct float8_e4m3 {
  std::uint8_t bits = 0;
  constexpr float8_e4m3() noexcept = default;
  template <class T>
    requires std::is_arithmetic_v<T>
  explicit constexpr float8_e4m3(T value) noexcept
      : bits(static_cast<std::uint8_t>(detail::small_float<4, 3, false>::encode(static_cast<float>(value)))) {}
  static constexpr float8_e4m3 from_bits(std::uint8_t value) noexcept {
    float8_e4m3 result;
    result.bits = value;
    return result;
  }
  constexpr operator float() const noexcept { return detail::small_float<4, 3, false>::decode(bits); }  // NOLINT
};

/// OCP FP8 E5M2: 5 exponent bits, 2 mantissa bits, infinities as in IEEE 754; largest 57344.
struct float8_e5m2 {
  std::uint8_t bits = 0;
  constexpr float8_e5m2() noexcept = default;
  template <class T>
    requires std::is_arithmetic_v<T>
  explicit constexpr float8_e5m2(T value) noexcept
      : bits(static_cast<std::uint8_t>(detail::small_float<5, 2, true>::encode(static_cast<float>(value)))) {}
  static constexpr float8_e5m2 from_bits(std::uint8_t value) noexcept {
    float8_e5m2 result;
    result.bits = value;
    return result;
  }
  constexpr operator float() const noexcept { return detail::small_float<5, 2, true>::decode(bits); }  // NOLINT
};

}  // namespace ferry::inline v0

#pragma once

// A number of any element type, as an argument.

#include <concepts>
#include <cstdint>

#include <ferry/tensor/dtype.hpp>

namespace ferry::inline v0 {

/// A boolean, integer, real or complex number. Converts implicitly from every arithmetic and element type, so that
/// fill_(0), fill_(0.5) and fill_(std::complex(1., 2.)) all work. Integers are kept exactly (modulo 2^64 if unsigned).
class scalar {
 public:
  enum class kind : std::uint8_t { boolean, integer, real, complex };

  /// The integer 0.
  constexpr scalar() noexcept : kind_(kind::integer) {}
  template <std::integral T>
  constexpr scalar(T value) noexcept  // NOLINT
      : kind_(std::same_as<T, bool> ? kind::boolean : kind::integer), integer_(static_cast<std::int64_t>(value)) {}
  template <std::floating_point T>
  constexpr scalar(T value) noexcept : kind_(kind::real), real_(static_cast<double>(value)) {}  // NOLINT
  constexpr scalar(float16 value) noexcept : scalar(static_cast<float>(value)) {}               // NOLINT
  constexpr scalar(bfloat16 value) noexcept : scalar(static_cast<float>(value)) {}              // NOLINT
  constexpr scalar(float8_e4m3 value) noexcept : scalar(static_cast<float>(value)) {}           // NOLINT
  constexpr scalar(float8_e5m2 value) noexcept : scalar(static_cast<float>(value)) {}           // NOLINT
  template <class T>
    requires requires(const T& value) {
      { value.real() } -> std::convertible_to<double>;
      { value.imag() } -> std::convertible_to<double>;
    }
  constexpr scalar(const T& value) noexcept  // NOLINT
      : kind_(kind::complex), real_(static_cast<double>(value.real())), imaginary_(static_cast<double>(value.imag())) {}

  [[nodiscard]] constexpr kind type() const noexcept { return kind_; }
  [[nodiscard]] constexpr bool is_integral() const noexcept { return kind_ <= kind::integer; }
  /// The value if is_integral().
  [[nodiscard]] constexpr std::int64_t integer() const noexcept { return integer_; }
  /// The real part.
  [[nodiscard]] constexpr double real() const noexcept { return is_integral() ? static_cast<double>(integer_) : real_; }
  [[nodiscard]] constexpr double imag() const noexcept { return imaginary_; }

 private:
  kind kind_;
  std::int64_t integer_ = 0;
  double real_ = 0;
  double imaginary_ = 0;
};

}  // namespace ferry::inline v0

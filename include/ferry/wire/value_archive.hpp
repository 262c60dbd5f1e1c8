#pragma once

// The small values that functions on tensors take, in archives and calls: dims, scalar and device.

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/device/device.hpp>
#include <ferry/tensor/dims.hpp>
#include <ferry/tensor/scalar.hpp>

namespace ferry::inline v0 {

// The same names in the signatures of methods, whatever the version namespace.
template <>
struct type_name_traits<dims> {
  static constexpr std::string_view name = "ferry::dims";
};
template <>
struct type_name_traits<scalar> {
  static constexpr std::string_view name = "ferry::scalar";
};
template <>
struct type_name_traits<device> {
  static constexpr std::string_view name = "ferry::device";
};

// Numbers convert to scalar, and lists to dims: only the types themselves are meant.

template <class Archive, std::same_as<dims> T>
void save(Archive& archive, const T& value) {
  archive(static_cast<std::uint8_t>(value.size()));
  for (const std::int64_t each : value) archive(each);
}
/// Throws errc::bad_shape for more than max_rank sizes.
template <class Archive, std::same_as<dims> T>
void load(Archive& archive, T& value) {
  std::uint8_t rank = 0;
  archive(rank);
  dims loaded(std::size_t{rank}, 0);
  for (std::int64_t& each : loaded) archive(each);
  value = std::move(loaded);
}

template <class Archive, std::same_as<scalar> T>
void save(Archive& archive, const T& value) {
  archive(static_cast<std::uint8_t>(value.type()));
  if (value.is_integral()) {
    archive(value.integer());
  } else {
    archive(value.real(), value.imag());
  }
}
/// Throws errc::malformed for a kind of number that does not exist.
template <class Archive, std::same_as<scalar> T>
void load(Archive& archive, T& value) {
  std::uint8_t kind = 0;
  archive(kind);
  if (kind > static_cast<std::uint8_t>(scalar::kind::complex))
    throw_error(errc::malformed, "a scalar of an unknown kind");
  const auto as = static_cast<scalar::kind>(kind);
  if (as == scalar::kind::boolean || as == scalar::kind::integer) {
    std::int64_t number = 0;
    archive(number);
    value = as == scalar::kind::boolean ? scalar(number != 0) : scalar(number);
  } else {
    double real = 0;
    double imaginary = 0;
    archive(real, imaginary);
    value = as == scalar::kind::real ? scalar(real) : scalar(std::complex<double>(real, imaginary));
  }
}

template <class Archive, std::same_as<device> T>
void save(Archive& archive, const T& value) {
  archive(value.kind, value.index);
}
/// Whether the device exists is not looked at.
template <class Archive, std::same_as<device> T>
void load(Archive& archive, T& value) {
  archive(value.kind, value.index);
}

}  // namespace ferry::inline v0

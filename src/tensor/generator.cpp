#include <ferry/tensor/generator.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/tensor/factories.hpp>

namespace ferry::inline v0 {
namespace detail {
namespace {

// The natural logarithm of a positive normal number. Fused operations are written out and all others stand alone, so no
// compiler can fuse differently; each is correctly rounded by IEEE 754. ln m = 2 artanh z with z = (m - 1) / (m + 1).
double exact_log(double value) {
  int exponent = 0;
  double m = std::frexp(value, &exponent);
  if (m < 0.70710678118654752) {  // keeps |z| below 0.172
    m *= 2;
    --exponent;
  }
  const double z = (m - 1) / (m + 1);
  const double square = z * z;
  double series = 1.0 / 23;
  for (int odd = 21; odd >= 1; odd -= 2) series = std::fma(series, square, 1.0 / odd);
  const double twice = 2 * z;
  return std::fma(static_cast<double>(exponent), 0.69314718055994531, twice * series);
}

// Draws `bits` random bits as a fraction in [0, 1): exact in any type with that many mantissa bits.
template <class T>
void fill_uniform(const tensor& t, generator& source, unsigned bits) {
  T* out = t.data<T>();
  const double unit = std::ldexp(1.0, -static_cast<int>(bits));
  for (std::int64_t i = 0; i != t.numel(); ++i) {
    out[i] = static_cast<T>(static_cast<double>(source.next() >> (64 - bits)) * unit);
  }
}

template <class T>
void fill_normal(const tensor& t, generator& source) {
  T* out = t.data<T>();
  for (std::int64_t i = 0; i != t.numel(); ++i) out[i] = static_cast<T>(source.normal());
}

[[noreturn]] void refuse(std::string_view what, dtype type) {
  throw_error(errc::bad_dtype, fmt::format("{} makes f16, bf16, f32 and f64, not {}", what, dtype_name(type)));
}

}  // namespace
}  // namespace detail

void generator::reseed(std::uint64_t seed) noexcept {
  for (std::uint64_t& word : state_) {  // SplitMix64
    seed += 0x9e3779b97f4a7c15U;
    std::uint64_t mixed = seed;
    mixed = (mixed ^ (mixed >> 30U)) * 0xbf58476d1ce4e5b9U;
    mixed = (mixed ^ (mixed >> 27U)) * 0x94d049bb133111ebU;
    word = mixed ^ (mixed >> 31U);
  }
  has_spare_ = false;
}

std::uint64_t generator::next() noexcept {
  const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

double generator::normal() noexcept {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  for (;;) {
    const double u = 2 * uniform() - 1;  // exact, fused or not
    const double v = 2 * uniform() - 1;
    const double s = std::fma(u, u, v * v);
    if (s >= 1 || s < std::numeric_limits<double>::min()) continue;
    const double factor = std::sqrt(-2 * detail::exact_log(s) / s);
    spare_ = v * factor;
    has_spare_ = true;
    return u * factor;
  }
}

generator& default_generator() {
  thread_local generator instance{[] {
    std::random_device entropy;
    return (static_cast<std::uint64_t>(entropy()) << 32U) | entropy();
  }()};
  return instance;
}

void manual_seed(std::uint64_t seed) { default_generator().reseed(seed); }

tensor rand(const dims& shape, generator& source, dtype type) {
  if (type != dtype::f16 && type != dtype::bf16 && type != dtype::f32 && type != dtype::f64)
    detail::refuse("rand", type);
  tensor result = empty(shape, type);
  switch (type) {
    case dtype::f16: detail::fill_uniform<float16>(result, source, 11); break;
    case dtype::bf16: detail::fill_uniform<bfloat16>(result, source, 8); break;
    case dtype::f32: detail::fill_uniform<float>(result, source, 24); break;
    default: detail::fill_uniform<double>(result, source, 53); break;
  }
  return result;
}

tensor randn(const dims& shape, generator& source, dtype type) {
  if (type != dtype::f16 && type != dtype::bf16 && type != dtype::f32 && type != dtype::f64)
    detail::refuse("randn", type);
  tensor result = empty(shape, type);
  switch (type) {
    case dtype::f16: detail::fill_normal<float16>(result, source); break;
    case dtype::bf16: detail::fill_normal<bfloat16>(result, source); break;
    case dtype::f32: detail::fill_normal<float>(result, source); break;
    default: detail::fill_normal<double>(result, source); break;
  }
  return result;
}

tensor rand(const dims& shape, dtype type) { return rand(shape, default_generator(), type); }
tensor randn(const dims& shape, dtype type) { return randn(shape, default_generator(), type); }

}  // namespace ferry::inline v0

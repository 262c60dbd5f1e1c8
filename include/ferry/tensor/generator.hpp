#pragma once

// Random tensors. The same seed gives the same values on every platform: the generator is integer arithmetic, and the
// normal distribution uses only correctly rounded operations (no libm logarithm, whose last bit varies).

#include <array>
#include <cstdint>

#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0 {

/// xoshiro256++ (D. Blackman and S. Vigna, "Scrambled Linear Pseudorandom Number Generators", 2021), its state filled
/// by SplitMix64 from the seed. Not for cryptography. A value type: a copy continues with the same numbers. Not
/// thread-safe.
class generator {
 public:
  explicit generator(std::uint64_t seed) noexcept { reseed(seed); }
  void reseed(std::uint64_t seed) noexcept;

  /// 64 random bits.
  std::uint64_t next() noexcept;
  /// A multiple of 2^-53, uniform in [0, 1).
  double uniform() noexcept { return static_cast<double>(next() >> 11U) * 0x1p-53; }
  /// Standard normal, by Marsaglia's polar method; every second call returns the other value of the last pair.
  double normal() noexcept;

 private:
  std::array<std::uint64_t, 4> state_{};
  double spare_ = 0;
  bool has_spare_ = false;
};

/// The calling thread's generator, used when none is given; seeded by the operating system.
[[nodiscard]] generator& default_generator();
/// Seeds the calling thread's generator.
void manual_seed(std::uint64_t seed);

/// Uniform in [0, 1), drawn in row-major order: the highest bits of one next() per element, as many as the mantissa
/// holds, so that 1 is never reached. f16, bf16, f32 and f64; throws errc::bad_dtype for others.
[[nodiscard]] tensor rand(const dims& shape, generator& source, dtype type = dtype::f32);
[[nodiscard]] tensor rand(const dims& shape, dtype type = dtype::f32);
/// Standard normal: generator::normal(), rounded to the dtype. The same dtypes.
[[nodiscard]] tensor randn(const dims& shape, generator& source, dtype type = dtype::f32);
[[nodiscard]] tensor randn(const dims& shape, dtype type = dtype::f32);

}  // namespace ferry::inline v0

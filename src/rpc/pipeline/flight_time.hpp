#pragma once

#include <chrono>
#include <cstdint>

#include <ferry/base/time.hpp>

#if defined(__x86_64__)
  #include <x86intrin.h>
#endif

namespace ferry::inline v0::detail {

/// A point in time that is cheap to read: the processor's counter where the kernel uses it as its clock source, else
/// the steady clock.
class flight_time {
 public:
  flight_time() noexcept = default;
  /// For callers that have read the clock already.
  explicit flight_time(clock::time_point at) noexcept
      : raw_(static_cast<std::uint64_t>(
                 std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count())
             << 1U) {}
  static flight_time now() noexcept {
#if defined(__x86_64__)
    if (counter_is_good) return of_raw((__rdtsc() << 1U) | 1U);
#endif
    return flight_time(clock::now());
  }
  static flight_time of_raw(std::uint64_t raw) noexcept {
    flight_time result;
    result.raw_ = raw;
    return result;
  }
  [[nodiscard]] std::uint64_t raw() const noexcept { return raw_; }

 private:
  static const bool counter_is_good;
  std::uint64_t raw_ = 0;  // nanoseconds of the steady clock, or (odd) ticks of the counter; twice
};

}  // namespace ferry::inline v0::detail

#pragma once

// The counter of the processor as a clock: a third of the price of the steady clock.

#include <cstdint>
#include <limits>

#if defined(__x86_64__)
  #include <x86intrin.h>
#endif

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

/// The processor counts at one rate, on all cores alike. Otherwise ticks are nanoseconds of the steady clock.
[[nodiscard]] bool has_steady_counter() noexcept;
extern const bool counter_is_steady;

[[nodiscard]] inline std::int64_t steady_now_ns() noexcept { return clock::now().time_since_epoch().count(); }

[[nodiscard]] inline std::int64_t ticks_now() noexcept {
#if defined(__x86_64__)
  if (counter_is_steady) [[likely]]
    return static_cast<std::int64_t>(__rdtsc());
#endif
  return steady_now_ns();
}

/// One moment on both clocks.
struct clock_reading {
  std::int64_t ticks = 0;
  std::int64_t steady_ns = 0;
  [[nodiscard]] static clock_reading now() noexcept;
};

/// Ticks as times of the steady clock.
class tick_scale {
 public:
  /// Between two readings, which are milliseconds apart at least; exact at the later one.
  constexpr tick_scale() noexcept = default;
  tick_scale(const clock_reading& first, const clock_reading& last) noexcept
      : last_(last),
        rate_(static_cast<double>(last.steady_ns - first.steady_ns) / static_cast<double>(last.ticks - first.ticks)) {}
  /// For ticks of the last moments, from what the process has seen of both clocks so far. Each thread compares them anew
  /// from time to time, and takes nothing otherwise.
  [[nodiscard]] static tick_scale recent() noexcept { return recent(ticks_now()); }
  /// The same, where the counter was just read. Valid until the thread asks again.
  [[nodiscard]] static const tick_scale& recent(std::int64_t now) noexcept;
  /// For ticks since a reading.
  [[nodiscard]] static tick_scale since(const clock_reading& first) noexcept;
  [[nodiscard]] std::int64_t steady_ns(std::int64_t ticks) const noexcept {
    return last_.steady_ns + static_cast<std::int64_t>(static_cast<double>(ticks - last_.ticks) * rate_);
  }

 private:
  friend class kept_tick_scale;
  clock_reading last_;
  double rate_ = 1;
};

/// A scale of one thread that is compared with the clocks from time to time.
class kept_tick_scale {
 public:
  /// For ticks of the last moments, where the counter was just read.
  [[nodiscard]] const tick_scale& at(std::int64_t now) noexcept {
    if (now >= good_until_) [[unlikely]]
      renew(now);
    return scale_;
  }

 private:
  void renew(std::int64_t now) noexcept;
  tick_scale scale_;
  std::int64_t good_until_ = std::numeric_limits<std::int64_t>::min();
};

}  // namespace ferry::inline v0::detail

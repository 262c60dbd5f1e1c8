#pragma once

// From the times of events to those of the steady clock.

#include <cstdint>

#include "../pipeline/flight_time.hpp"

namespace ferry::inline v0::detail {

/// One moment on both clocks.
struct flight_reading {
  std::int64_t steady_ns = 0;
  std::uint64_t ticks = 0;  ///< of the processor's counter; 0: it is not used
};
/// A few hundred nanoseconds.
[[nodiscard]] flight_reading read_flight_clocks() noexcept;

/// The moment `at` in nanoseconds of the steady clock, by two readings, `last` being the later one. Not below zero, and
/// bounded, whatever the readings are.
[[nodiscard]] std::int64_t steady_ns_of(flight_time at, const flight_reading& first,
                                        const flight_reading& last) noexcept;

/// Converts moments since its construction into nanoseconds of the steady clock.
class flight_calendar {
 public:
  flight_calendar() noexcept : first_(read_flight_clocks()), last_(first_) {}
  /// Reads the clock again, to calibrate the counter. Not thread-safe.
  void read() noexcept { last_ = read_flight_clocks(); }
  [[nodiscard]] std::int64_t steady_ns(flight_time at) const noexcept { return steady_ns_of(at, first_, last_); }
  [[nodiscard]] const flight_reading& last() const noexcept { return last_; }

 private:
  flight_reading first_;
  flight_reading last_;
};

}  // namespace ferry::inline v0::detail

#include "flight_calendar.hpp"

#include <algorithm>
#include <chrono>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::int64_t latest_steady_ns = std::int64_t{1} << 62U;

std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
}

std::uint64_t counter_now() noexcept {
  const std::uint64_t raw = flight_time::now().raw();
  return (raw & 1U) != 0 ? raw >> 1U : 0;
}

}  // namespace

// A thread may be preempted between the two reads: use the closest pair of several.
flight_reading read_flight_clocks() noexcept {
  constexpr int tries = 8;
  std::uint64_t closest = ~std::uint64_t{0};
  flight_reading result;
  for (int i = 0; i != tries; ++i) {
    const std::uint64_t before = counter_now();
    const std::int64_t now = steady_now();
    const std::uint64_t took = counter_now() - before;
    if (took >= closest) continue;
    closest = took;
    result = {now, before + took / 2};
  }
  return result;
}

std::int64_t steady_ns_of(flight_time at, const flight_reading& first, const flight_reading& last) noexcept {
  const std::uint64_t value = at.raw() >> 1U;
  const auto bounded = [](std::int64_t ns) { return std::clamp<std::int64_t>(ns, 0, latest_steady_ns); };
  if ((at.raw() & 1U) == 0) return bounded(static_cast<std::int64_t>(value));
  if (last.ticks <= first.ticks || last.steady_ns < first.steady_ns) return bounded(first.steady_ns);
  const double rate =
      static_cast<double>(last.steady_ns - first.steady_ns) / static_cast<double>(last.ticks - first.ticks);
  const double since = static_cast<double>(static_cast<std::int64_t>(value - last.ticks)) * rate;
  constexpr double far = 4e18;  // below the largest std::int64_t, by enough that a sum with latest_steady_ns has room
  if (!(since > -far && since < far)) return since < 0 ? 0 : latest_steady_ns;
  return bounded(bounded(last.steady_ns) + static_cast<std::int64_t>(since));
}

}  // namespace ferry::inline v0::detail

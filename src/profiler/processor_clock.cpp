#include "processor_clock.hpp"

#include <algorithm>
#include <limits>

#if defined(__x86_64__)
  #include <cpuid.h>
#endif

namespace ferry::inline v0::detail {
namespace {

// Both clocks are compared over at least this long: reading them takes 50 ns, so that the rate is right to 1 in 40,000.
constexpr std::int64_t shortest_comparison_ns = 2'000'000;

const clock_reading& first_reading() noexcept {
  static const clock_reading at_load = clock_reading::now();
  return at_load;
}

}  // namespace

bool has_steady_counter() noexcept {
#if defined(__x86_64__)
  constexpr unsigned power_management = 0x80000007;
  constexpr unsigned invariant_counter = 1U << 8U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(power_management, &a, &b, &c, &d) != 0 && (d & invariant_counter) != 0;
#else
  return false;
#endif
}

const bool counter_is_steady = has_steady_counter();

namespace {
// When the library is loaded: by the first profile both clocks have gone on for long enough.
[[maybe_unused]] const clock_reading& loaded_at = first_reading();
}  // namespace

clock_reading clock_reading::now() noexcept {
  clock_reading best;
  std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
  for (int i = 0; i != 3; ++i) {
    const std::int64_t before = ticks_now();
    const std::int64_t steady = steady_now_ns();
    const std::int64_t after = ticks_now();
    if (after - before >= shortest) continue;
    shortest = after - before;
    best = {before + (after - before) / 2, steady};
  }
  return best;
}

namespace {

constinit thread_local kept_tick_scale scale_of_thread;

constexpr std::int64_t longest_use_ns = 50'000'000;
// Of the time over which the rate was measured: it is off by the same share of a time as of that.
constexpr double share_of_comparison = 0.25;

}  // namespace

void kept_tick_scale::renew(std::int64_t now) noexcept {
  const clock_reading& first = first_reading();
  scale_ = tick_scale::since(first);
  const double compared_ns = static_cast<double>(scale_.last_.steady_ns - first.steady_ns);
  const double use_ns = std::min(static_cast<double>(longest_use_ns), share_of_comparison * compared_ns);
  good_until_ = now + static_cast<std::int64_t>(use_ns / scale_.rate_);
}

const tick_scale& tick_scale::recent(std::int64_t now) noexcept { return scale_of_thread.at(now); }

tick_scale tick_scale::since(const clock_reading& first) noexcept {
  const clock_reading last = clock_reading::now();
  if (last.steady_ns - first.steady_ns >= shortest_comparison_ns) return {first, last};
  // Soon after `first`: the rate of a longer time, which may have to pass yet.
  const clock_reading& start = first_reading();
  while (steady_now_ns() - start.steady_ns < shortest_comparison_ns) {
  }
  return {start, clock_reading::now()};
}

}  // namespace ferry::inline v0::detail

#pragma once

#include <chrono>

#include <time.h>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

/// A moment of the steady clock, as of the kernel's last tick: a fifth of the price of clock::now(), which reads the processor's
/// counter.
inline clock::time_point coarse_now() noexcept {
  timespec now{};
  if (::clock_gettime(CLOCK_MONOTONIC_COARSE, &now) != 0) return clock::now();
  return clock::time_point(std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec));
}

/// Whether clock::now() has to be asked if it has expired.
inline bool may_have_expired(deadline at) noexcept {
  constexpr std::chrono::milliseconds longest_tick{20};
  return !at.is_never() && at.at() <= coarse_now() + longest_tick;
}

}  // namespace ferry::inline v0::detail

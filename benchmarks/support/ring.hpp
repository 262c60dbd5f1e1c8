#pragma once

// The fastest possible exchange between two processors, as a reference for the machine's current speed.

#include <chrono>
#include <optional>

namespace ferry_bench {

/// The median round trip, in microseconds, of 64 bytes through shared memory between two threads that spin, pinned to
/// the two processors. Empty where there is only one.
std::optional<double> ring_round_trip(std::chrono::nanoseconds window);

}  // namespace ferry_bench

#pragma once

// The fastest possible exchange between two processors, as a reference for the machine's current speed.

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace ferry_bench {

/// The median round trip, in microseconds, of 64 bytes through shared memory between two threads that spin, pinned to
/// the two processors. Empty where there is only one.
std::optional<double> ring_round_trip(std::chrono::nanoseconds window);
/// Round trips of so many bytes, at most 4096, in microseconds: the baseline of calls through shared memory. To the
/// processors it makes no difference whether threads or processes share the memory. Empty where there is only one.
std::vector<double> ring_round_trips(std::size_t bytes, std::chrono::nanoseconds window);

}  // namespace ferry_bench

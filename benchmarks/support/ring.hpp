#pragma once

// The fastest exchange that two processors can have, as a yardstick of the machine at the moment.

#include <chrono>
#include <optional>

namespace ferry_bench {

/// The median round trip, in microseconds, of 64 bytes through shared memory between two threads that spin, pinned to
/// the two processors. Nothing where there is only one.
std::optional<double> ring_round_trip(std::chrono::nanoseconds window);

}  // namespace ferry_bench

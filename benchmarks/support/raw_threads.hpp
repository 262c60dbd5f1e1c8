#pragma once

// The cost for two threads of one process to wake each other: the baseline of calls within the process.

#include <chrono>
#include <vector>

#include "affinity.hpp"

namespace ferry_bench {

/// Round trips between two threads that pass a turn to each other, sleeping in a futex meanwhile or spinning; in
/// microseconds. Spinning threads are pinned to one processor each whatever `pin` is: they would wait for each other's
/// time slices.
std::vector<double> thread_round_trips(bool spinning, pin_mode pin, std::chrono::nanoseconds window);

}  // namespace ferry_bench

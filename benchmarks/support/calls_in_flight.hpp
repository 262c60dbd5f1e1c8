#pragma once

// Small calls per second with a fixed number of them in flight, in two styles of user code.

#include <chrono>
#include <cstddef>

#include <ferry/rpc/worker.hpp>

#include "statistics.hpp"

namespace ferry_bench {

inline constexpr std::size_t in_flight = 64;

double per_second(std::size_t calls, clock::time_point started);
/// The completion of each call makes the next.
double continuations(const ferry::worker& caller, std::chrono::nanoseconds window);
/// One thread goes through a ring of futures: get() the oldest, call again.
double futures(const ferry::worker& caller, std::chrono::nanoseconds window);

}  // namespace ferry_bench

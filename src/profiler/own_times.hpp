#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ferry/profiler/profile.hpp>

#include "waits.hpp"

namespace ferry::inline v0::detail {

struct time_interval {
  std::int64_t from;
  std::int64_t to;
};
/// The length of what intervals cover together.
std::int64_t covered(std::vector<time_interval> all);

/// The time of each event, by its number, without that of its children at the same worker; those that ran beside it, on their way,
/// are no part of it.
std::unordered_map<std::uint64_t, std::int64_t> own_times(const profiler::profile& from, const wait_index& waits);

}  // namespace ferry::inline v0::detail

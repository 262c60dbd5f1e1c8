#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

struct time_interval {
  std::int64_t from;
  std::int64_t to;
};
/// The length of what intervals cover together.
std::int64_t covered(std::vector<time_interval> all);

/// The time of each event, by its number, without that of its children at the same worker.
std::unordered_map<std::uint64_t, std::int64_t> own_times(const profiler::profile& from);

}  // namespace ferry::inline v0::detail

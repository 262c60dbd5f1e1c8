#pragma once

#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// All events of one name.
struct named_events {
  std::string_view name = {};  ///< of the profile
  std::uint64_t count = 0;
  std::uint64_t failed = 0;
  std::int64_t total_ns = 0;
  std::int64_t own_ns = 0;  ///< without their children at the same worker
  std::int64_t longest_ns = 0;
  std::int64_t on_device_ns = 0;
  std::set<device> devices = {};
};

/// Those with the largest totals first.
std::vector<named_events> events_by_name(const profiler::profile& from);

}  // namespace ferry::inline v0::detail

#pragma once

// Times that devices tell after the events that they belong to have been taken: docs/decisions/device_times.md.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <ferry/profiler/profile.hpp>

#include "../device/device_interval.hpp"

namespace ferry::inline v0::detail {

class worker_core;

inline constexpr std::string_view device_times_method = "ferry/device_times";

/// The time of an event that its device has not told yet.
struct awaited_time {
  std::uint64_t event = 0;                          ///< its number in the profile
  std::int32_t node = -1;                           ///< the worker where it ran
  std::uint64_t token = 0;                          ///< by which that worker knows it, if it is another one
  std::shared_ptr<device_interval> here = nullptr;  ///< null: it ran elsewhere
};

/// Keeps an interval for those that will ask by the token that it returns; the last 65,536 of the process. Throws std::bad_alloc.
[[nodiscard]] std::uint64_t keep_for_asking(std::shared_ptr<device_interval> which);
/// Of intervals that were kept, as device_interval::length_ns() says; device_time_unknown for others. Waits for nothing.
std::vector<std::int64_t> tell_device_times(const std::vector<std::uint64_t>& tokens);

/// Enters into the profile what is told within `limit`: asks the devices of this process, and by calls of `through` the workers of
/// the others, again and again, since a device cannot be waited for with a limit. What is not told then has no time.
void await_device_times(profiler::profile& of, std::vector<awaited_time> awaited,
                        const std::weak_ptr<worker_core>& through, std::chrono::nanoseconds limit);

}  // namespace ferry::inline v0::detail

#pragma once

// How a kind of device measures time: events that keep the time at which their stream reached them. Beside device_traits, not of
// them: only kinds of ferry's own measure, and nothing but device_interval asks.

#include <cstdint>

#include <ferry/device/device.hpp>

namespace ferry::inline v0::detail {

/// Of a length of time on a device: nanoseconds, or one of these.
inline constexpr std::int64_t device_time_pending = -1;  ///< the device is not there yet
inline constexpr std::int64_t device_time_unknown = -2;  ///< it will not say: it has failed, or the place was captured

/// None of them throws, waits, or disturbs a capture.
struct timing_operations {
  /// Null: it cannot be made.
  void* (*create_event)(device where) noexcept;
  void (*destroy_event)(device where, void* event) noexcept;
  /// Marks the end of what the stream was given. False: it is being captured, or the device fails; nothing is marked then.
  bool (*record_event)(device where, void* event, void* stream) noexcept;
  /// The time between two events that were recorded.
  std::int64_t (*elapsed_ns)(device where, void* from, void* to) noexcept;
};

/// Null: devices of that kind do not measure.
[[nodiscard]] const timing_operations* timing_of(device_kind kind) noexcept;

extern const timing_operations cuda_timing;  // cuda/cuda_timing.cpp

}  // namespace ferry::inline v0::detail

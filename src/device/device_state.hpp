#pragma once

// The process's state for each device: its pools of streams and events.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::inline v0::detail {

inline constexpr std::size_t streams_of_pool = 32;

/// Never destroyed, nor are its streams and events: tensors may outlive every static object, and the driver may be
/// unloaded earlier.
struct device_state {
  const device_operations* operations;
  device where;
  std::mutex mutex;
  std::vector<void*> streams;
  std::size_t next_stream = 0;
  std::vector<void*> events;       // not in use
  void* reclaim_stream = nullptr;  // on which memory used by several streams is freed

  std::atomic<std::uint64_t> blocks{0};
  std::atomic<std::uint64_t> used_bytes{0};
  std::atomic<std::uint64_t> peak_used_bytes{0};
  std::atomic<std::uint64_t> total_allocations{0};
};

/// Throws errc::bad_device unless the device exists. Thread-safe.
device_state& state_of(device where);

}  // namespace ferry::inline v0::detail

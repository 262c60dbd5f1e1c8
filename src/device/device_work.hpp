#pragma once

// What a profiler, which is a higher floor, sees of the work that ferry queues on devices. While there is none, a kernel or a copy
// costs one relaxed load and a branch more.

#include <atomic>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Called on the thread that is about to queue work on a stream.
using device_work_sink = void (*)(const stream& on) noexcept;

extern std::atomic<device_work_sink> device_work_sink_in_use;

/// Before a kernel is started, or a copy or a fill is queued.
inline void device_work_begins(const stream& on) noexcept {
  if (const device_work_sink sink = device_work_sink_in_use.load(std::memory_order_relaxed)) [[unlikely]]
    sink(on);
}

}  // namespace ferry::inline v0::detail

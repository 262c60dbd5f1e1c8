#pragma once

// When the tensors of a message may be read: marks in the sender's streams.

#include <memory>
#include <span>
#include <vector>

#include <ferry/device/stream.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// One event for each device with streams. Read by several threads at once if the message has copies.
struct device_marks {
  std::vector<event> events;

  /// Whether all marked work has completed. Throws errc::device_failure.
  [[nodiscard]] bool done() const {
    for (const event& each : events) {
      if (!each.done()) return false;
    }
    return true;
  }
  /// Makes `on` wait for the work on `where` that must complete before its tensors may be read.
  void wait_for(device where, const stream& on) const {
    for (const event& each : events) {
      if (each.device() == where) on.wait(each);
    }
  }
};

/// Marks the calling thread's current streams of the devices that `tensors` are on; null if there is nothing to wait
/// for. Throws errc::bad_device, errc::device_failure.
std::shared_ptr<const device_marks> mark_devices(std::span<const tensor> tensors);

}  // namespace ferry::inline v0::detail

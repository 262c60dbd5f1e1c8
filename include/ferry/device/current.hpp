#pragma once

// The current device of each thread, and its current stream on every device. Tensors are made, copied and read in the
// order of the current stream of their device.

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0 {

/// The calling thread's current device of a kind, as reported by the kind's own runtime (cudaGetDevice). Does not
/// create a context. Throws errc::bad_device if there is no device of the kind.
[[nodiscard]] device current_device(device_kind kind);

/// Makes a device the calling thread's current one of its kind during its lifetime; no effect for the CPU. Must be
/// destroyed on the thread that created it, in the reverse order of others. Throws errc::bad_device,
/// errc::device_failure.
class device_guard {
 public:
  explicit device_guard(device where);
  device_guard(const device_guard&) = delete;
  device_guard& operator=(const device_guard&) = delete;
  /// Makes the former device current again, unless that one has no context: making it current would create one.
  ~device_guard();

 private:
  device where_;
  int former_ = 0;
};

/// The calling thread's current stream of a device; the default stream unless another was set. Throws errc::bad_device.
[[nodiscard]] stream current_stream(device where);

/// Makes a stream the calling thread's current one of its device; returns the former one. Throws errc::bad_device, and
/// errc::resource_exhausted if the thread has current streams on more than 64 devices.
stream set_current_stream(const stream& now);

/// Makes a stream the calling thread's current one of its device during its lifetime. Does not change the current
/// device.
/// Must be destroyed on the thread that created it, in the reverse order of others. Throws as set_current_stream.
class stream_guard {
 public:
  explicit stream_guard(const stream& now) : former_(set_current_stream(now)) {}
  stream_guard(const stream_guard&) = delete;
  stream_guard& operator=(const stream_guard&) = delete;
  ~stream_guard();

 private:
  stream former_;
};

}  // namespace ferry::inline v0

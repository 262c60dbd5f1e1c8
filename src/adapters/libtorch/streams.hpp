#pragma once

// Order between streams of ferry and of libtorch, on one CUDA device.

#include <c10/core/Stream.h>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// The calling thread's current stream in libtorch. Throws errc::bad_device unless libtorch has the device.
c10::Stream torch_stream(device where);
/// Work queued later on `waits` waits for the work queued on `on` so far; the host does not.
void wait_for_torch(const stream& waits, const c10::Stream& on);
void torch_waits_for(const stream& on, const c10::Stream& waits);

}  // namespace ferry::inline v0::detail

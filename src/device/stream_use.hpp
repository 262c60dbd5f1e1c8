#pragma once

// What the streams of a device are doing.

#include <cstdint>

namespace ferry::inline v0::detail {

struct device_state;

enum class stream_use : std::uint8_t { idle, busy, captured };

/// Busy also if the device has failed: the caller finds out when it uses the stream.
stream_use use_of_stream(const device_state& state, void* handle) noexcept;

/// Synchronizes with each of the device's streams that has done what it was given, which waits for nothing: the default stream and
/// those of the pool. A question alone is not enough for the CUDA runtime: it gives memory that was freed on a stream back to the
/// device only when the host has synchronized with that stream since.
void synchronize_idle_streams(device_state& state) noexcept;

}  // namespace ferry::inline v0::detail

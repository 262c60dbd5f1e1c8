#pragma once

// Copies between the host's ordinary memory and devices, through memory that the device copies from directly
// (page-locked, for CUDA): copying straight from ordinary memory may make the host wait for the device.

#include <cstddef>

#include <ferry/device/device.hpp>
#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Copies `bytes` of the host to memory of on.device(), in the order of `on`. The source has been read when this
/// returns; the host waits for the device only where page-locked memory is short (pinned_memory.hpp). Throws
/// errc::out_of_memory, errc::device_failure (also if `on` is being captured).
void upload(const stream& on, void* target, const void* source, std::size_t bytes);

/// Copies memory of on.device() to the host, after the work queued on `on`. Waits: the bytes are valid when this
/// returns.
/// Throws errc::out_of_memory, errc::device_failure.
void download(const stream& on, void* target, const void* source, std::size_t bytes);

}  // namespace ferry::inline v0::detail

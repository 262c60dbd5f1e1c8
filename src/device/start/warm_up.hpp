#pragma once

// What a device is slow to make is made before the first call.

#include <span>
#include <string_view>
#include <vector>

#include <ferry/device/device.hpp>

namespace ferry::inline v0::detail {

/// Makes, for those of the devices that exist and have not been warmed up in this process: the context, the memory pool and the
/// access to other devices, all streams of the pool, events, page-locked memory, and loads the kernels. Logs a sentence with
/// the time for `who`. Most of it waits for the device, so it must not happen while others wait for a call. Throws
/// errc::device_failure, errc::out_of_memory. Thread-safe.
void warm_up_devices(std::span<const device> devices, std::string_view who);

}  // namespace ferry::inline v0::detail

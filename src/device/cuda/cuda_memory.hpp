#pragma once

// The memory pool of each CUDA device.

#include <cstddef>
#include <cstdint>

#include <ferry/device/device.hpp>

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// Memory from the device's pool, usable in stream order. Throws errc::out_of_memory after the pool's unused memory has
/// been released, errc::bad_device, errc::device_failure.
void* cuda_allocate(device where, std::size_t bytes, CUstream_st* stream);

/// Bytes that the pool holds of the device's memory; 0 if the device has no pool yet.
std::uint64_t cuda_reserved_bytes(device where);

/// Releases the pool's unused memory to the device, if the device has a pool.
void cuda_trim(device where);

/// Makes the device's pool, and opens the device and those that were warmed up before to each other. Throws
/// errc::bad_device, errc::device_failure.
void warm_up_cuda_memory(device where);

/// Gives two devices direct access to each other's memory where the machine supports it, from pools and from elsewhere;
/// once per pair. On return the access is there.
void open_cuda_peers(device first, device second);

}  // namespace ferry::inline v0::detail

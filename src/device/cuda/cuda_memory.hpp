#pragma once

// The pool of memory of each CUDA device.

#include <cstddef>
#include <cstdint>

#include <ferry/device/device.hpp>

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// Memory from the device's pool, usable in the order of the stream. Throws errc::out_of_memory after what the pool keeps
/// was given back, errc::bad_device, errc::device_failure.
void* cuda_allocate(device where, std::size_t bytes, CUstream_st* stream);

/// Bytes that the pool has from the device; 0 if the device has no pool yet.
std::uint64_t cuda_reserved_bytes(device where);

/// Gives what the pool keeps back to the device, if it has one.
void cuda_trim(device where);

/// Lets two devices reach each other's pools directly where the machine can do that; asked once for each pair.
void open_cuda_peers(device first, device second);

}  // namespace ferry::inline v0::detail

#pragma once

// The memory pools of each CUDA device: one for small blocks, one for large ones.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ferry/device/device.hpp>

#include "cuda_runtime.hpp"

namespace ferry::inline v0::detail {

/// Memory from the device's pools, usable in stream order. Throws errc::out_of_memory after the unused memory of both has been
/// released, errc::bad_device, errc::device_failure.
void* cuda_allocate(device where, std::size_t bytes, CUstream_st* stream);

/// Bytes that the pools hold of the device's memory; 0 if the device has none yet.
std::uint64_t cuda_reserved_bytes(device where);

/// Releases the unused memory of both pools to the device, if it has them: what was freed on streams, or before events, with
/// which the host has synchronized since. For the driver a question that was answered with yes is no synchronization.
void cuda_trim(device where);

/// The devices on which this process has pools, as it has once it has used them. Asks nothing of the driver.
std::vector<device> cuda_devices_in_use();
/// The pool of large blocks, if it exists and can be exported to other processes as a file descriptor; else null.
CUmemPoolHandle_st* exportable_cuda_pool(device where) noexcept;
/// Blocks of this size or more come from the pool of large blocks; smaller ones only where memory was short.
inline constexpr std::size_t least_large_block = std::size_t{1} << 20;

/// Makes the device's pools, and opens the device and those that were warmed up before to each other. Throws
/// errc::bad_device, errc::device_failure.
void warm_up_cuda_memory(device where);

/// Gives two devices direct access to each other's memory where the machine supports it, from pools and from elsewhere;
/// once per pair. On return the access is there.
void open_cuda_peers(device first, device second);

}  // namespace ferry::inline v0::detail

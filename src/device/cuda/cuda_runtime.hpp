#pragma once

// The functions of the CUDA runtime that ferry calls, as a table: filled from the toolkit's runtime where ferry was
// built with one (cudart.cpp), absent elsewhere, and replaced in tests by the fake CUDA runtime, which needs neither
// toolkit nor GPU. So the rest of the CUDA sources is compiled and tested everywhere. docs/decisions/cuda_runtime.md
// has the reasons.
//
// Names are those of the C API without "cuda"; structures of its parameters are plain arguments here.

#include <array>
#include <cstddef>
#include <cstdint>

struct CUstream_st;
struct CUevent_st;
struct CUmemPoolHandle_st;

namespace ferry::inline v0::detail {

/// A cudaError_t; the numbers are part of CUDA's ABI, and cudart.cpp checks those that are used here.
using cuda_status = int;

namespace cuda_error {
inline constexpr cuda_status success = 0;
inline constexpr cuda_status invalid_value = 1;
inline constexpr cuda_status memory_allocation = 2;
inline constexpr cuda_status runtime_unloading = 4;
inline constexpr cuda_status insufficient_driver = 35;
inline constexpr cuda_status no_device = 100;
inline constexpr cuda_status invalid_device = 101;
inline constexpr cuda_status ecc_uncorrectable = 214;
inline constexpr cuda_status invalid_resource_handle = 400;
inline constexpr cuda_status not_ready = 600;
inline constexpr cuda_status illegal_address = 700;
inline constexpr cuda_status launch_timeout = 702;
inline constexpr cuda_status peer_access_already_enabled = 704;
inline constexpr cuda_status context_is_destroyed = 709;
inline constexpr cuda_status device_assert = 710;
inline constexpr cuda_status hardware_stack_error = 714;
inline constexpr cuda_status illegal_instruction = 715;
inline constexpr cuda_status misaligned_address = 716;
inline constexpr cuda_status invalid_address_space = 717;
inline constexpr cuda_status invalid_program_counter = 718;
inline constexpr cuda_status launch_failure = 719;
inline constexpr cuda_status not_permitted = 800;
inline constexpr cuda_status not_supported = 801;
inline constexpr cuda_status capture_unsupported = 900;
inline constexpr cuda_status capture_invalidated = 901;
inline constexpr cuda_status capture_unjoined = 904;
inline constexpr cuda_status capture_isolation = 905;
inline constexpr cuda_status captured_event = 907;
}  // namespace cuda_error

/// cudaStreamLegacy
inline CUstream_st* legacy_stream() noexcept { return reinterpret_cast<CUstream_st*>(std::uintptr_t{1}); }
/// cudaStreamPerThread
inline CUstream_st* stream_per_thread() noexcept { return reinterpret_cast<CUstream_st*>(std::uintptr_t{2}); }

/// cudaStreamCaptureMode: what a thread's calls may do while a graph is captured.
enum class cuda_capture_mode : int { global = 0, thread_local_ = 1, relaxed = 2 };

/// What identifies a GPU on its machine, in every process: cudaDeviceProp::uuid.
using cuda_uuid = std::array<std::byte, 16>;
/// The name of a block of an exported pool in other processes: cudaMemPoolPtrExportData.
using cuda_block_name = std::array<std::byte, 64>;

enum class cuda_memory : int { unregistered = 0, host = 1, device = 2, managed = 3 };

struct cuda_runtime {
  cuda_status (*get_device_count)(int* count);
  cuda_status (*get_device)(int* device);
  cuda_status (*set_device)(int device);
  /// cuDevicePrimaryCtxGetState: whether the runtime has a context on the device. Creates none.
  cuda_status (*device_has_context)(int* has, int device);
  cuda_status (*device_can_access_peer)(int* can, int device, int peer);
  /// Gives the current device direct access to memory of the peer that comes from no pool.
  cuda_status (*device_enable_peer_access)(int peer);
  /// cudaDevAttrMemoryPoolsSupported
  cuda_status (*device_has_memory_pools)(int* has, int device);
  /// cudaDevAttrMemoryPoolSupportedHandleTypes: whether pools can be exported as file descriptors.
  cuda_status (*device_has_exportable_pools)(int* has, int device);
  /// As 12040 for 12.4: what the driver supports (0: there is none), and what ferry was built with.
  cuda_status (*get_versions)(int* driver, int* runtime);
  cuda_status (*get_last_error)();
  const char* (*get_error_string)(cuda_status status);

  /// Sets the calling thread's mode, and returns the former one in its place.
  cuda_status (*thread_exchange_stream_capture_mode)(cuda_capture_mode* mode);
  /// Whether the stream is being captured, also if that capture has been invalidated. Allowed at any time.
  cuda_status (*stream_is_capturing)(CUstream_st* stream, bool* capturing);

  /// With cudaStreamNonBlocking.
  cuda_status (*stream_create)(CUstream_st** stream);
  cuda_status (*stream_destroy)(CUstream_st* stream);
  /// Leaves the last error alone if the answer is not_ready.
  cuda_status (*stream_query)(CUstream_st* stream);
  cuda_status (*stream_synchronize)(CUstream_st* stream);
  cuda_status (*stream_wait_event)(CUstream_st* stream, CUevent_st* event);
  cuda_status (*launch_host_func)(CUstream_st* stream, void (*function)(void*), void* argument);

  /// With cudaEventDisableTiming; `blocking`: with cudaEventBlockingSync, so that a thread that waits for it sleeps.
  cuda_status (*event_create)(CUevent_st** event, bool blocking);
  /// With the default flags: it keeps the time at which it was reached.
  cuda_status (*event_create_timed)(CUevent_st** event);
  cuda_status (*event_destroy)(CUevent_st* event);
  cuda_status (*event_record)(CUevent_st* event, CUstream_st* stream);
  /// Leaves the last error alone if the answer is not_ready.
  cuda_status (*event_query)(CUevent_st* event);
  cuda_status (*event_synchronize)(CUevent_st* event);
  /// Between two events of one device that keep their times and are done.
  cuda_status (*event_elapsed_time)(float* milliseconds, CUevent_st* from, CUevent_st* to);

  /// A memory pool of the device. `exportable`: its memory can be exported to other processes as a file descriptor.
  cuda_status (*mem_pool_create)(CUmemPoolHandle_st** pool, int device, bool exportable);
  cuda_status (*mem_pool_destroy)(CUmemPoolHandle_st* pool);
  cuda_status (*mem_pool_set_release_threshold)(CUmemPoolHandle_st* pool, std::uint64_t bytes);
  /// cudaMemPoolReuseAllowOpportunistic: whether a stream may get a block that another stream freed and has got there, without
  /// a wait for an event and without a synchronization of the host since. A pool begins with it.
  cuda_status (*mem_pool_set_opportunistic_reuse)(CUmemPoolHandle_st* pool, bool allowed);
  /// Bytes that the pool holds of the device's memory, and those of them in use.
  cuda_status (*mem_pool_usage)(CUmemPoolHandle_st* pool, std::uint64_t* reserved, std::uint64_t* used);
  cuda_status (*mem_pool_trim_to)(CUmemPoolHandle_st* pool, std::size_t bytes_to_keep);
  /// Gives the device read and write access to the pool's memory.
  cuda_status (*mem_pool_set_access)(CUmemPoolHandle_st* pool, int device);
  /// A file descriptor that stands for the pool in other processes.
  cuda_status (*mem_pool_export)(int* descriptor, CUmemPoolHandle_st* pool);
  /// The pool of another process, which is of the current device. The descriptor stays the caller's.
  cuda_status (*mem_pool_import)(CUmemPoolHandle_st** pool, int descriptor);
  /// The name of a block, by its beginning. Its pool has been exported.
  cuda_status (*mem_pool_export_pointer)(cuda_block_name* name, void* block);
  /// Maps a block of an imported pool, until free_async, which comes before the other process frees it.
  cuda_status (*mem_pool_import_pointer)(void** block, CUmemPoolHandle_st* pool, const cuda_block_name* name);
  /// cuMemGetAddressRange: the block in which the address lies.
  cuda_status (*memory_range)(void** begin, std::size_t* bytes, const void* address);
  cuda_status (*device_uuid)(cuda_uuid* uuid, int device);
  cuda_status (*malloc_from_pool_async)(void** memory, std::size_t bytes, CUmemPoolHandle_st* pool,
                                        CUstream_st* stream);
  cuda_status (*free_async)(void* memory, CUstream_st* stream);
  /// Of the current device.
  cuda_status (*mem_get_info)(std::size_t* free, std::size_t* total);

  /// Page-locked host memory that all devices can access.
  cuda_status (*host_alloc)(void** memory, std::size_t bytes);
  cuda_status (*free_host)(void* memory);

  /// With cudaMemcpyDefault.
  cuda_status (*memcpy_async)(void* to, const void* from, std::size_t bytes, CUstream_st* stream);
  cuda_status (*memcpy_peer_async)(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                                   CUstream_st* stream);
  cuda_status (*memset_async)(void* memory, int value, std::size_t bytes, CUstream_st* stream);
  cuda_status (*pointer_get_attributes)(const void* memory, cuda_memory* type, int* device);

  /// cudaFuncGetAttributes: loads a kernel, by its entry point, for the current device. Waits for the device.
  cuda_status (*load_kernel)(const void* entry);
};

/// The toolkit's runtime; null in a build without the toolkit.
const cuda_runtime* linked_cuda_runtime() noexcept;

/// Replaces the runtime, for tests: call it before any other use of ferry. Cannot be undone. Null: there is no runtime.
void use_cuda_runtime(const cuda_runtime* runtime) noexcept;

/// The runtime in use; null if there is none.
const cuda_runtime* cuda_runtime_in_use() noexcept;

}  // namespace ferry::inline v0::detail

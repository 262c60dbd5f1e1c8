#pragma once

// A double of the CUDA runtime, for tests without a GPU: ferry's own sources run on it unchanged, through the table of
// src/device/cuda_runtime.hpp. A test binary that links `fake_cuda` has eight CUDA devices from its start, and so have its
// child processes.
//
// * Streams are queues that threads of the double work off, each in its order and the streams in any: ordered only by
//   events, and by the rules of the legacy default stream. Delays are random, from a seed.
// * Memory of devices is poisoned when it is had, when it is given back, and where a copy is about to land. A processor that
//   has protection keys lets only the double touch it: the host's code that reads it by mistake dies.
// * Events that keep their times have the host's, of when their streams reached them; what takes the time are the delays.
// * Every call is counted and can be made to fail; contexts are noted. What the runtime refuses, the double refuses.
// * Captures are as strict as the documents of CUDA allow: a call that allocates, creates or asks invalidates every capture
//   that its thread's mode does not protect, and a stream that is being captured keeps what it is given.
// * One thread calls the functions of the host: one that waits for another waits for ever.
// * A device that has failed drops what is queued, and answers every call with its error.
// * A pool is trimmed of what the host has observed to be free: by a synchronization with the stream that freed it or with an
//   event recorded there later, not by a question that was answered with yes. Memory is aligned to 256 bytes and no more.
// * Pools are exported to real processes, which map the same memory. A block has no name before its pool has been exported, is
//   mapped once at a time, and is not freed while another process has it mapped: the process that does ends.
// * Kernels are called on the host, in the order of their stream, through the seam of src/tensor/kernels.hpp and src/ops/kernels.hpp;
//   launcher.hpp is for those of other floors.
//
// From the environment: FERRY_FAKE_CUDA_DEVICES (0: no driver), FERRY_FAKE_CUDA_SEED, FERRY_FAKE_CUDA_QUEUES (of the hardware;
// 0: one for each stream), FERRY_FAKE_CUDA_CREATIONS_BLOCK=1, FERRY_FAKE_CUDA_MEMORY (MiB of each device; 64).
//
// Thread-safe, all of it. Waits are bounded by a minute, and then fail.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

struct CUstream_st;

namespace fake_cuda {

/// The calls of the runtime, as src/device/cuda_runtime.hpp names them, and starts of kernels.
enum class call : std::uint8_t {
  get_device_count,
  get_device,
  set_device,
  device_has_context,
  device_can_access_peer,
  device_enable_peer_access,
  device_has_memory_pools,
  device_has_exportable_pools,
  get_versions,
  thread_exchange_stream_capture_mode,
  stream_is_capturing,
  stream_create,
  stream_destroy,
  stream_query,
  stream_synchronize,
  stream_wait_event,
  stream_wait_event_of_frees,  // an event that marks nothing but frees: nothing is stale without it
  launch_host_func,
  event_create,
  event_create_timed,
  event_destroy,
  event_record,
  event_record_of_frees,  // on a stream that was given nothing but frees
  event_query,
  event_synchronize,
  event_elapsed_time,
  mem_pool_create,
  mem_pool_destroy,
  mem_pool_set_release_threshold,
  mem_pool_set_opportunistic_reuse,
  mem_pool_usage,
  mem_pool_trim_to,
  mem_pool_set_access,
  mem_pool_export,
  mem_pool_import,
  mem_pool_export_pointer,
  mem_pool_import_pointer,
  memory_range,
  device_uuid,
  malloc_from_pool_async,
  free_async,
  mem_get_info,
  host_alloc,
  free_host,
  memcpy_async,
  memcpy_peer_async,
  memset_async,
  pointer_get_attributes,
  load_kernel,
  launch_kernel,
  count_  ///< no call
};

/// The number of devices, from the start to the end of the process.
int device_count();

// ---------------------------------------------------------------- what was called

/// How often so far, failed or not.
std::uint64_t calls(call which);
/// How often the host waited for a device, or may have had to: stream_synchronize, event_synchronize, host_alloc and
/// free_host, copies from or to pageable memory.
std::uint64_t host_synchronizations();
/// How often a thread kept a processor busy while it waited: stream_synchronize, and event_synchronize of an event that is
/// not for waiting, of work that was not done.
std::uint64_t busy_waits();
/// How often something was made that the device is slow to make, and for which it may have to stand still: contexts, pools,
/// streams, page-locked memory, access to peers; and how often a kernel was loaded because it was started.
std::uint64_t creations();
/// Whether each of them waits until the device has done what it was given; false at first.
void set_creations_block(bool block);
/// What the last call of this thread that failed has left, and is left by the program's own.
int last_error();
void set_last_error(int error);
/// The devices that have a context.
std::vector<int> contexts();

// ---------------------------------------------------------------- order and time

/// While one lives, no device does anything: what is queued meanwhile stays queued, and what has begun is brought to its
/// end before the constructor returns.
class pause {
 public:
  pause();
  pause(const pause&) = delete;
  pause& operator=(const pause&) = delete;
  ~pause();
};

/// Which of several streams goes on.
enum class schedule : std::uint8_t {
  random,
  newest_first,  ///< the one that was given something last: a missing wait for an event shows at once
  oldest_first,
};
void set_schedule(schedule how);
/// An operation waits up to so many microseconds before it begins; 200 by default.
void set_delay(unsigned microseconds);
/// Streams share so many queues of each device, by their number: what one is given is begun only when all that was queued
/// before, on any stream of its queue, has been done. 0: each has its own, as at first.
void set_hardware_queues(unsigned queues);
/// Waits until nothing is queued on any device.
void drain();
/// Whether anything is. Waits for nothing.
bool busy();

// ---------------------------------------------------------------- captures

/// As cudaStreamCaptureMode.
enum class capture_mode : std::uint8_t { global, thread_local_, relaxed };
/// The calling thread's mode.
capture_mode thread_capture_mode();
/// Begins to capture the stream; returns a cudaError_t.
int begin_capture(CUstream_st* stream, capture_mode mode = capture_mode::global);
struct captured_graph {
  int status = 0;         ///< a cudaError_t: whether the capture was invalidated, or a stream has not been joined
  std::size_t nodes = 0;  ///< what was queued on the stream, and on those that waited for it
};
captured_graph end_capture(CUstream_st* stream);

// ---------------------------------------------------------------- failures

/// The nth call from now on (1: the next one) fails with this error of CUDA, and does nothing.
void fail(call which, int error, unsigned nth = 1);
/// The nth call from now on says that it has succeeded, and orders nothing: event_record leaves an event that marks nothing,
/// stream_wait_event does not wait, launch_host_func calls at once. To see that a test notices.
void skip(call which, unsigned nth = 1);
/// Forgets what fail() and skip() said and has not happened.
void fail_nothing();
/// From now on every call that is about the device fails, as after an error of a kernel, until mend(), and what is queued on
/// it is dropped: it counts as done, and does nothing.
void break_device(int device, int error);
void mend();
/// The same, but what is queued goes on: the process is not told any more what the device does.
void refuse_calls(int device, int error);
/// As at the end of a process: the driver is gone, and every call fails with cudaErrorCudartUnloading. For good.
void unload();

// ---------------------------------------------------------------- machine

/// Whether a device reaches the memory of another; at first all do whose numbers are both below 4, or both not.
void set_peer_access(int from, int to, bool can);
/// Whether devices have memory pools; at first they do.
void set_memory_pools(bool supported);
/// Whether pools can be exported; at first they can.
void set_exportable_pools(bool supported);
/// What get_versions() says; 12040 both at first.
void set_versions(int driver, int runtime);
/// Whether cudaDeviceEnablePeerAccess has been called for the pair.
bool peer_access_enabled(int from, int to);
/// What each device has; 64 MiB at first.
void set_memory(std::size_t bytes_per_device);

// ---------------------------------------------------------------- memory

inline constexpr unsigned char fresh_poison = 0xcb;   ///< had, and not written yet
inline constexpr unsigned char freed_poison = 0xdb;   ///< given back
inline constexpr unsigned char pinned_poison = 0xeb;  ///< a copy is about to be written here

/// What lies in device memory at this moment, in whatever state: waits for nothing.
std::vector<unsigned char> peek(const void* memory, std::size_t bytes);
/// Writes there at this moment.
void poke(void* memory, std::span<const unsigned char> bytes);
/// The blocks of a device that are had and not given back.
std::size_t blocks_in_use(int device);
/// Whether the host dies when it touches memory of a device.
bool host_is_kept_out();

/// Lets the calling thread touch memory of devices while it lives.
class host_access {
 public:
  host_access();
  host_access(const host_access&) = delete;
  host_access& operator=(const host_access&) = delete;
  ~host_access();

 private:
  [[maybe_unused]] int former_ = 0;  // the layer for GPUs keeps nothing out
};

}  // namespace fake_cuda

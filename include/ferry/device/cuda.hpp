#pragma once

// CUDA devices. No CUDA header is needed: streams and events are declared by the types that CUDA's handles point to, so
// that cudaStream_t and cudaEvent_t can be passed unchanged.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <ferry/device/traits.hpp>

struct CUstream_st;
struct CUevent_st;

namespace ferry::inline v0 {

/// Tag of NVIDIA GPUs.
struct cuda {};

/// CUDA is optional: without the toolkit at build time, a driver, or a GPU, count() is 0, and everything else throws
/// errc::bad_device. Errors of the runtime are errc::device_failure, with the runtime's text.
///
/// A call creates a context on the device that it names, and on no other. The calling thread's current device is the
/// same after each call as before, except after make_current, and except in a thread whose device has no context yet
/// (one that never used CUDA): that one is left on the named device.
///
/// Work of the library does not disturb the capture of a graph on another thread: its calls are made in the thread's relaxed
/// capture mode, which is restored. It refuses to work on a stream that is being captured itself. After an error that the
/// device does not recover from, every call about it throws that error, without asking the runtime again.
///
/// ferry's own streams do not wait for CUDA's legacy default stream (cudaStreamNonBlocking). default_stream() is that
/// legacy stream; kernels started without a stream run on it.
template <>
struct device_traits<cuda> {
  static constexpr std::string_view name = "cuda";
  static constexpr device_kind kind = device_kind::cuda;
  using stream_handle = CUstream_st*;  ///< cudaStream_t
  using event_handle = CUevent_st*;    ///< cudaEvent_t

  /// The number of CUDA devices that this process may use. 0 if ferry was built without CUDA, or if the machine has no
  /// GPU or no usable driver. Does not create a CUDA context. Queried once, then cached. Thread-safe.
  static int count() noexcept;
  /// Why there are none: which call of the runtime failed, and what it said.
  static std::string obstacle();

  /// Creates the context, the memory pool, and direct access to the pools of devices that were warmed up before, and loads
  /// ferry's kernels. Throws errc::bad_device, errc::device_failure.
  static void warm_up(device where);

  static int current() noexcept;
  static void make_current(int index);
  /// No effect if that device has no context: making it current would create one.
  static void restore_current(int former) noexcept;

  /// From a pool of each device that keeps freed memory. Freed memory is reused in the order of the streams, without
  /// waiting.
  static void* allocate(device where, std::size_t bytes, stream_handle stream);
  static void deallocate(device where, void* memory, std::size_t bytes, stream_handle stream) noexcept;

  static std::uint64_t reserved_bytes(device where);
  static void trim(device where);

  static stream_handle default_stream(device where) noexcept;
  static stream_handle create_stream(device where);
  static void destroy_stream(device where, stream_handle stream) noexcept;
  /// Null and cudaStreamLegacy: the default stream. Throws errc::invalid_argument for cudaStreamPerThread.
  static stream_handle import_stream(device where, stream_handle stream);
  static bool capturing(device where, stream_handle stream);
  static bool stream_done(device where, stream_handle stream);
  static void synchronize_stream(device where, stream_handle stream);
  /// Runs on a thread of the driver, which must not call CUDA. Not called after an error of the device.
  static void call_on_host(device where, stream_handle stream, void (*function)(void*), void* argument);

  static event_handle create_event(device where);
  /// With cudaEventBlockingSync.
  static event_handle create_waiting_event(device where);
  static void destroy_event(device where, event_handle event) noexcept;
  static void record_event(device where, event_handle event, stream_handle stream);
  static void wait_event(device where, stream_handle stream, event_handle event);
  static bool event_done(device where, event_handle event);
  static void synchronize_event(device where, event_handle event);

  /// For pageable host memory CUDA does not guarantee that the host does not wait.
  static void copy(device to, void* target, device from, const void* source, std::size_t bytes, device on,
                   stream_handle stream);
  static void fill(device where, void* memory, unsigned char value, std::size_t bytes, stream_handle stream);
  static bool peer_access(device from, device to) noexcept;

  /// Page-locked.
  static void* allocate_staging(device where, std::size_t bytes);
  static void deallocate_staging(device where, void* memory, std::size_t bytes) noexcept;
};
static_assert(device_type<cuda>);

}  // namespace ferry::inline v0

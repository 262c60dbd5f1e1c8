#include <ferry/device/cuda.hpp>

#include <string>

#include <unistd.h>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "cuda_memory.hpp"
#include "cuda_scope.hpp"
#include "kernel_modules.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

using detail::check_cuda;
using detail::cuda_runtime;
using detail::cuda_scope;
using detail::cuda_status;
namespace cuda_error = detail::cuda_error;

struct cuda_census {
  int count = 0;
  std::string obstacle;  // why there are none
};

// What the machine says about a driver that does not work: "; the driver supports CUDA 11.4, ferry was built with 12.4".
std::string more_about_the_driver(const cuda_runtime& runtime, cuda_status status) {
  constexpr const char* control = "/dev/nvidiactl";
  int driver = 0;
  int built_with = 0;
  if (runtime.get_versions(&driver, &built_with) != cuda_error::success) {
    static_cast<void>(runtime.get_last_error());
  } else if (status == cuda_error::insufficient_driver) {
    const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
    return driver == 0
               ? "; no driver is installed"
               : fmt::format("; the driver supports CUDA {}, ferry was built with {}", text(driver), text(built_with));
  }
  if (::access(control, F_OK) == 0 && ::access(control, R_OK | W_OK) != 0)
    return fmt::format("; this process has no permission to open {}", control);
  return {};
}

cuda_census ask_for_devices() noexcept {
  cuda_census result;
  try {
    const cuda_runtime* runtime = detail::cuda_runtime_in_use();
    if (!runtime) {
      result.obstacle = "ferry was built without the CUDA Toolkit";
      return result;
    }
    const cuda_status status = runtime->get_device_count(&result.count);
    if (status == cuda_error::success) return result;
    result.count = 0;
    // The runtime keeps the last error until it is read: the user's own code must not find this one.
    static_cast<void>(runtime->get_last_error());
    result.obstacle = fmt::format("cudaGetDeviceCount failed: {} (CUDA error {}){}", runtime->get_error_string(status),
                                  status, more_about_the_driver(*runtime, status));
    log(log_level::info, "no CUDA devices: " + result.obstacle);
  } catch (const std::exception&) {  // no memory for the text
    result.obstacle.clear();
  }
  return result;
}

const cuda_census& the_census() noexcept {
  static const cuda_census taken = ask_for_devices();
  return taken;
}

// Converts the runtime's answer to a completion query.
bool is_done(cuda_status status, device where, std::string_view attempt) {
  if (status == cuda_error::not_ready) return false;
  check_cuda(status, where, attempt);
  return true;
}

// Logs failures that a destructor cannot throw. After main() the driver may have been unloaded, and its resources with
// it.
void note_failure(const cuda_runtime& runtime, cuda_status status, device where, std::string_view attempt) noexcept {
  if (status == cuda_error::success || status == cuda_error::runtime_unloading ||
      status == cuda_error::context_is_destroyed) {
    return;
  }
  static_cast<void>(runtime.get_last_error());
  note_cuda_failure(status, where, attempt);
  if (cuda_fence_of(where) != cuda_error::success || !log_enabled(log_level::warning)) return;
  try {
    log(log_level::warning, fmt::format("cannot {} on {}: {} (CUDA error {})", attempt, to_string(where),
                                        runtime.get_error_string(status), status));
  } catch (...) {
    log(log_level::warning, "a CUDA device failed to release a resource");
  }
}

}  // namespace
}  // namespace detail

int device_traits<cuda>::count() noexcept { return detail::the_census().count; }

std::string device_traits<cuda>::obstacle() { return detail::the_census().obstacle; }

void device_traits<cuda>::warm_up(device where) {
  detail::warm_up_cuda_memory(where);
  detail::load_kernels(where);
}

int device_traits<cuda>::current() noexcept {
  const detail::cuda_runtime* runtime = detail::cuda_runtime_in_use();
  int index = 0;
  if (runtime && runtime->get_device(&index) != detail::cuda_error::success) {
    static_cast<void>(runtime->get_last_error());
    return 0;
  }
  return index;
}

void device_traits<cuda>::make_current(int index) {
  const detail::cuda_runtime& runtime = detail::need_cuda_runtime();
  const detail::relaxed_captures relaxed(&runtime);
  detail::check_cuda(runtime.set_device(index), {kind, index}, "make the device current");
}

void device_traits<cuda>::restore_current(int former) noexcept {
  if (const detail::cuda_runtime* runtime = detail::cuda_runtime_in_use()) {
    const detail::relaxed_captures relaxed(runtime);
    detail::restore_cuda_device(*runtime, former);
  }
}

void* device_traits<cuda>::allocate(device where, std::size_t bytes, stream_handle stream) {
  return bytes == 0 ? nullptr : detail::cuda_allocate(where, bytes, stream);
}

void device_traits<cuda>::deallocate(device where, void* memory, std::size_t, stream_handle stream) noexcept {
  if (!memory) return;
  const detail::cuda_scope scope(where, std::nothrow);
  if (scope.runtime()) detail::note_failure(*scope.runtime(), scope->free_async(memory, stream), where, "free memory");
}

std::uint64_t device_traits<cuda>::reserved_bytes(device where) { return detail::cuda_reserved_bytes(where); }

void device_traits<cuda>::trim(device where) { detail::cuda_trim(where); }

CUstream_st* device_traits<cuda>::default_stream(device) noexcept { return detail::legacy_stream(); }

CUstream_st* device_traits<cuda>::create_stream(device where) {
  const detail::cuda_scope scope(where);
  CUstream_st* stream = nullptr;
  detail::check_cuda(scope->stream_create(&stream), where, "create a stream");
  return stream;
}

void device_traits<cuda>::destroy_stream(device where, stream_handle stream) noexcept {
  const detail::cuda_scope scope(where, std::nothrow);
  if (scope.runtime()) detail::note_failure(*scope.runtime(), scope->stream_destroy(stream), where, "destroy a stream");
}

CUstream_st* device_traits<cuda>::import_stream(device where, stream_handle stream) {
  if (stream == detail::stream_per_thread()) {
    throw_error(
        errc::invalid_argument,
        fmt::format("cudaStreamPerThread of {} cannot be a ferry::stream: the handle stands for another stream in each "
                    "thread, and ferry uses streams from several; create one with cudaStreamCreateWithFlags, or use "
                    "pool_stream",
                    to_string(where)));
  }
  return stream ? stream : default_stream(where);
}

bool device_traits<cuda>::capturing(device where, stream_handle stream) {
  const detail::cuda_scope scope(where);
  bool result = false;
  detail::check_cuda(scope->stream_is_capturing(stream, &result), where, "ask whether a stream is being captured");
  return result;
}

bool device_traits<cuda>::stream_done(device where, stream_handle stream) {
  const detail::cuda_scope scope(where);
  return detail::is_done(scope->stream_query(stream), where, "query a stream");
}

void device_traits<cuda>::synchronize_stream(device where, stream_handle stream) {
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->stream_synchronize(stream), where, "wait for a stream");
}

void device_traits<cuda>::call_on_host(device where, stream_handle stream, void (*function)(void*), void* argument) {
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->launch_host_func(stream, function, argument), where, "queue a function of the host");
}

CUevent_st* device_traits<cuda>::create_event(device where) {
  const detail::cuda_scope scope(where);
  CUevent_st* event = nullptr;
  detail::check_cuda(scope->event_create(&event, false), where, "create an event");
  return event;
}

CUevent_st* device_traits<cuda>::create_waiting_event(device where) {
  const detail::cuda_scope scope(where);
  CUevent_st* event = nullptr;
  detail::check_cuda(scope->event_create(&event, true), where, "create an event");
  return event;
}

void device_traits<cuda>::destroy_event(device where, event_handle event) noexcept {
  const detail::cuda_scope scope(where, std::nothrow);
  if (scope.runtime()) detail::note_failure(*scope.runtime(), scope->event_destroy(event), where, "destroy an event");
}

void device_traits<cuda>::record_event(device where, event_handle event, stream_handle stream) {
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->event_record(event, stream), where, "record an event");
}

void device_traits<cuda>::wait_event(device where, stream_handle stream, event_handle event) {
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->stream_wait_event(stream, event), where, "make a stream wait for an event");
}

bool device_traits<cuda>::event_done(device where, event_handle event) {
  const detail::cuda_scope scope(where);
  return detail::is_done(scope->event_query(event), where, "query an event");
}

void device_traits<cuda>::synchronize_event(device where, event_handle event) {
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->event_synchronize(event), where, "wait for an event");
}

void device_traits<cuda>::copy(device to, void* target, device from, const void* source, std::size_t bytes, device on,
                               stream_handle stream) {
  if (bytes == 0) return;
  if (to.is_cuda() && from.is_cuda() && to != from) detail::open_cuda_peers(from, to);
  const detail::cuda_scope scope(on);
  if (to.is_cuda() && from.is_cuda() && to != from) {
    // Also between devices without peer access: the driver then goes through the host.
    detail::check_cuda(scope->memcpy_peer_async(target, to.index, source, from.index, bytes, stream), on,
                       fmt::format("copy {} bytes from {} to {}", bytes, to_string(from), to_string(to)));
  } else {
    detail::check_cuda(scope->memcpy_async(target, source, bytes, stream), on,
                       fmt::format("copy {} bytes from {} to {}", bytes, to_string(from), to_string(to)));
  }
}

void device_traits<cuda>::fill(device where, void* memory, unsigned char value, std::size_t bytes,
                               stream_handle stream) {
  if (bytes == 0) return;
  const detail::cuda_scope scope(where);
  detail::check_cuda(scope->memset_async(memory, value, bytes, stream), where, fmt::format("fill {} bytes", bytes));
}

bool device_traits<cuda>::peer_access(device from, device to) noexcept {
  if (from == to) return true;
  const detail::cuda_runtime* runtime = detail::cuda_runtime_in_use();
  int can = 0;
  if (!runtime || runtime->device_can_access_peer(&can, from.index, to.index) != detail::cuda_error::success) {
    if (runtime) static_cast<void>(runtime->get_last_error());
    return false;
  }
  return can != 0;
}

void* device_traits<cuda>::allocate_staging(device where, std::size_t bytes) {
  const detail::cuda_scope scope(where);
  void* memory = nullptr;
  const detail::cuda_status status = scope->host_alloc(&memory, bytes);
  if (status == detail::cuda_error::memory_allocation) {
    static_cast<void>(scope->get_last_error());
    throw_error(errc::out_of_memory, fmt::format("cannot allocate {} bytes of page-locked host memory for copies "
                                                 "from and to {}",
                                                 bytes, to_string(where)));
  }
  detail::check_cuda(status, where, "allocate page-locked memory");
  return memory;
}

void device_traits<cuda>::deallocate_staging(device where, void* memory, std::size_t) noexcept {
  const detail::cuda_scope scope(where, std::nothrow);
  if (scope.runtime())
    detail::note_failure(*scope.runtime(), scope->free_host(memory), where, "free page-locked memory");
}

}  // namespace ferry::inline v0

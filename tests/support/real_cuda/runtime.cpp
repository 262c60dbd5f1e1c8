// The control interface of the double (../fake_cuda/fake_cuda.hpp) on a real GPU, so that the tests that are written for the
// double run there: calls are counted and made to fail, streams are held, eight devices are shown whatever the machine has.
//
// What a GPU does in its own time, no layer can order: set_schedule() and set_delay() do nothing here. Tests of what only
// the double does are named in left_out.txt.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>

#include <device/cuda/cuda_scope.hpp>
#include <ops/cublas.hpp>

#include "fake_cuda.hpp"
#include "gate.hpp"
#include "lower.hpp"
#include "shown.hpp"

namespace real_cuda {

const ferry::detail::cuda_runtime& lower() {
  const ferry::detail::cuda_runtime* const runtime = lower_runtime();
  if (!runtime) {
    std::fputs("no GPU: this ferry was built without the CUDA Toolkit\n", stderr);
    std::exit(1);
  }
  return *runtime;
}

int gpus() {
  static const int count = [] {
    int found = 0;
    const int status = lower().get_device_count(&found);
    if (status == ferry::detail::cuda_error::success && found != 0) return found;
    std::fprintf(stderr, "no GPU: %s (CUDA error %d)\n", lower().get_error_string(status), status);
    std::exit(1);
  }();
  return count;
}

}  // namespace real_cuda

namespace fake_cuda {
namespace {

namespace cuda_error = ferry::detail::cuda_error;
using ferry::detail::arithmetic_kernels;
using ferry::detail::cuda_block_name;
using ferry::detail::cuda_memory;
using ferry::detail::cuda_runtime;
using ferry::detail::cuda_uuid;
using ferry::detail::tensor_kernels;
using real_cuda::call_in_progress;
using real_cuda::gate;
using real_cuda::gpu_of;
using real_cuda::lower;
using status = ferry::detail::cuda_status;

constexpr auto call_count = static_cast<std::size_t>(call::count_);
constexpr std::chrono::seconds longest_wait{60};

// What tests asked for, and what they ask about.
struct machine {
  std::mutex mutex;
  struct planned {
    unsigned after = 0;
    status error = 0;
  };
  std::array<std::vector<planned>, call_count> failures;
  std::array<unsigned, call_count> skips{};  // 0: none
  std::vector<status> broken;                // by device; 0: works
  std::set<int> contexts;                    // shown devices that were used
  std::set<std::pair<int, int>> apart;       // pairs whose first does not reach the second
  std::set<std::pair<int, int>> peers;       // pairs whose first was given access to the second's memory
  bool memory_pools = true;
  bool exportable_pools = true;
  std::vector<CUstream_st*> legacy;  // of each device; null until it is used
};

std::array<std::atomic<std::uint64_t>, call_count> counted{};
std::atomic<std::uint64_t> synchronized{0};
std::atomic<bool> unloaded{false};
thread_local int current_device = 0;
thread_local status last_error = 0;

real_cuda::belongings<CUevent_st*>& events() {
  static auto* const all = new real_cuda::belongings<CUevent_st*>;
  return *all;
}
// Events that skip() left without a mark.
real_cuda::belongings<CUevent_st*>& blank_events() {
  static auto* const all = new real_cuda::belongings<CUevent_st*>;
  return *all;
}
// Events that mark nothing but frees, and the streams to tell them by.
real_cuda::belongings<CUevent_st*>& events_of_frees() {
  static auto* const all = new real_cuda::belongings<CUevent_st*>;
  return *all;
}
real_cuda::belongings<CUstream_st*>& freeing_streams() {
  static auto* const all = new real_cuda::belongings<CUstream_st*>;
  return *all;
}
real_cuda::belongings<CUstream_st*>& working_streams() {
  static auto* const all = new real_cuda::belongings<CUstream_st*>;
  return *all;
}
real_cuda::belongings<CUmemPoolHandle_st*>& pools() {
  static auto* const all = new real_cuda::belongings<CUmemPoolHandle_st*>;
  return *all;
}
// Those of other processes, to which their own device needs access as well.
real_cuda::belongings<CUmemPoolHandle_st*>& imported_pools() {
  static auto* const all = new real_cuda::belongings<CUmemPoolHandle_st*>;
  return *all;
}
real_cuda::blocks_in_use& blocks() {
  static auto* const all = new real_cuda::blocks_in_use;
  return *all;
}

machine& the_machine() {
  static auto* const all = [] {
    auto* fresh = new machine;
    fresh->broken.resize(static_cast<std::size_t>(device_count()));
    fresh->legacy.resize(static_cast<std::size_t>(device_count()));
    for (int from = 0; from != device_count(); ++from) {
      for (int to = 0; to != device_count(); ++to) {
        if ((from < 4) != (to < 4)) fresh->apart.insert({from, to});
      }
    }
    return fresh;
  }();
  return *all;
}

status failed(status error) {
  if (error != cuda_error::success) last_error = error;
  return error;
}

// At the start of every call: counts it, and says whether it fails.
status enter(call which) {
  const auto place = static_cast<std::size_t>(which);
  counted[place].fetch_add(1, std::memory_order_relaxed);
  if (unloaded.load(std::memory_order_relaxed)) return cuda_error::runtime_unloading;
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  auto& plans = all.failures[place];
  for (auto& plan : plans) --plan.after;
  const auto due = std::find_if(plans.begin(), plans.end(), [](const auto& plan) { return plan.after == 0; });
  if (due == plans.end()) return cuda_error::success;
  const status error = due->error;
  plans.erase(due);
  return failed(error);
}

// Whether this call is one that skip() spoke of.
bool skipped(call which) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  unsigned& left = all.skips[static_cast<std::size_t>(which)];
  return left != 0 && --left == 0;
}

// The call is about this shown device: makes its GPU current.
status enter_device(int device) {
  machine& all = the_machine();
  {
    const std::lock_guard lock(all.mutex);
    if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
    if (all.broken[static_cast<std::size_t>(device)] != 0) return failed(all.broken[static_cast<std::size_t>(device)]);
    all.contexts.insert(device);
  }
  return failed(lower().set_device(gpu_of(device)));
}

// Shown devices share the default stream of their GPU: each has a stream of its own in its place.
status find_legacy(int device, CUstream_st*& stream) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  CUstream_st*& known = all.legacy[static_cast<std::size_t>(device)];
  if (!known) {
    if (const status error = gate::instance().make_stream(device, &known)) return failed(error);
  }
  stream = known;
  return cuda_error::success;
}

// The stream behind a handle, and its shown device; the default one is that of the current device.
status find_stream(CUstream_st*& stream, int* device = nullptr) {
  int found = current_device;
  if (!stream || stream == ferry::detail::legacy_stream()) {
    if (const status error = enter_device(found)) return error;
    if (const status error = find_legacy(found, stream)) return error;
  } else {
    const auto known = gate::instance().streams.device_of(stream);
    if (!known) return failed(cuda_error::invalid_resource_handle);
    found = *known;
    if (const status error = enter_device(found)) return error;
  }
  if (device) *device = found;
  return cuda_error::success;
}

// False if it is not so within a minute.
template <class Done>
bool becomes(Done done) {
  const auto until = std::chrono::steady_clock::now() + longest_wait;
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

// Waits while the call says that it is not ready, and returns what else it says.
template <class Ask>
status poll(Ask ask) {
  status result = cuda_error::success;
  const bool over = becomes([&] { return (result = ask()) != cuda_error::not_ready; });
  static_cast<void>(lower().get_last_error());
  return failed(over ? result : cuda_error::launch_timeout);
}

bool is_pageable(const void* memory) {
  cuda_memory type{};
  int device = 0;
  if (lower().pointer_get_attributes(memory, &type, &device) != cuda_error::success) {
    static_cast<void>(lower().get_last_error());
    return true;
  }
  return type == cuda_memory::unregistered;
}

// Memory that is known must hold all of the bytes.
bool in_block(const void* memory, std::size_t bytes) {
  const auto block = blocks().around(memory);
  if (!block) return true;
  return static_cast<const std::byte*>(memory) + bytes <= block->start + block->bytes;
}

// ---------------------------------------------------------------- the functions

status get_device_count(int* count) {
  if (const status error = enter(call::get_device_count)) return error;
  *count = device_count();
  return device_count() == 0 ? failed(cuda_error::no_device) : cuda_error::success;
}

status get_device(int* device) {
  if (const status error = enter(call::get_device)) return error;
  *device = current_device;
  return cuda_error::success;
}

status set_device(int device) {
  if (const status error = enter(call::set_device)) return error;
  if (const status error = enter_device(device)) return error;
  current_device = device;
  return cuda_error::success;
}

status device_has_context(int* has, int device) {
  if (const status error = enter(call::device_has_context)) return error;
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  *has = all.contexts.contains(device) ? 1 : 0;
  return cuda_error::success;
}

status device_can_access_peer(int* can, int device, int peer) {
  if (const status error = enter(call::device_can_access_peer)) return error;
  if (device < 0 || peer < 0 || device >= device_count() || peer >= device_count()) {
    return failed(cuda_error::invalid_device);
  }
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    *can = device != peer && !all.apart.contains({device, peer}) ? 1 : 0;
  }
  if (*can == 0 || gpu_of(device) == gpu_of(peer)) return cuda_error::success;
  return failed(lower().device_can_access_peer(can, gpu_of(device), gpu_of(peer)));
}

status device_enable_peer_access(int peer) {
  if (const status error = enter(call::device_enable_peer_access)) return error;
  if (const status error = enter_device(peer)) return error;
  const int device = current_device;
  if (const status error = enter_device(device)) return error;
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (all.apart.contains({device, peer})) return failed(cuda_error::invalid_device);
    if (!all.peers.insert({device, peer}).second) return failed(cuda_error::peer_access_already_enabled);
  }
  if (gpu_of(device) == gpu_of(peer)) return cuda_error::success;
  const call_in_progress in("cudaDeviceEnablePeerAccess");
  const status error = lower().device_enable_peer_access(gpu_of(peer));
  return failed(error == cuda_error::peer_access_already_enabled ? cuda_error::success
                                                                 : error);  // by another pair of devices
}

status device_has_memory_pools(int* has, int device) {
  if (const status error = enter(call::device_has_memory_pools)) return error;
  if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (!all.memory_pools) {
      *has = 0;
      return cuda_error::success;
    }
  }
  return failed(lower().device_has_memory_pools(has, gpu_of(device)));
}

status device_has_exportable_pools(int* has, int device) {
  if (const status error = enter(call::device_has_exportable_pools)) return error;
  if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (!all.exportable_pools) {
      *has = 0;
      return cuda_error::success;
    }
  }
  return failed(lower().device_has_exportable_pools(has, gpu_of(device)));
}

status get_versions(int* driver, int* runtime) {
  if (const status error = enter(call::get_versions)) return error;
  return failed(lower().get_versions(driver, runtime));
}

status thread_exchange_stream_capture_mode(ferry::detail::cuda_capture_mode* mode) {
  if (const status error = enter(call::thread_exchange_stream_capture_mode)) return error;
  return failed(lower().thread_exchange_stream_capture_mode(mode));
}

status stream_is_capturing(CUstream_st* stream, bool* capturing) {
  if (const status error = enter(call::stream_is_capturing)) return error;
  if (const status error = find_stream(stream)) return error;
  return failed(lower().stream_is_capturing(stream, capturing));
}

status get_last_error() {
  static_cast<void>(lower().get_last_error());
  return std::exchange(last_error, cuda_error::success);
}

const char* get_error_string(status error) { return lower().get_error_string(error); }

status stream_create(CUstream_st** stream) {
  if (const status error = enter(call::stream_create)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaStreamCreateWithFlags");
  return failed(gate::instance().make_stream(current_device, stream));
}

status stream_destroy(CUstream_st* stream) {
  if (const status error = enter(call::stream_destroy)) return error;
  if (!gate::instance().streams.remove(stream)) return failed(cuda_error::invalid_resource_handle);
  freeing_streams().remove(stream);
  working_streams().remove(stream);
  return failed(lower().stream_destroy(stream));
}

status stream_query(CUstream_st* stream) {
  if (const status error = enter(call::stream_query)) return error;
  if (const status error = find_stream(stream)) return error;
  return failed(lower().stream_query(stream));
}

status stream_synchronize(CUstream_st* stream) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::stream_synchronize)) return error;
  if (const status error = find_stream(stream)) return error;
  if (const status error = poll([&] { return lower().stream_query(stream); })) return error;
  return failed(lower().stream_synchronize(stream));  // a question alone has the runtime observe nothing
}

status stream_wait_event(CUstream_st* stream, CUevent_st* event) {
  const call which = events_of_frees().device_of(event) ? call::stream_wait_event_of_frees : call::stream_wait_event;
  if (const status error = enter(which)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!events().device_of(event)) return failed(cuda_error::invalid_resource_handle);
  if (blank_events().device_of(event) || skipped(which)) return cuda_error::success;
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaStreamWaitEvent");
  return failed(lower().stream_wait_event(stream, event));
}

status launch_host_func(CUstream_st* stream, void (*function)(void*), void* argument) {
  if (const status error = enter(call::launch_host_func)) return error;
  if (const status error = find_stream(stream)) return error;
  if (skipped(call::launch_host_func)) {
    function(argument);
    return cuda_error::success;
  }
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaLaunchHostFunc");
  return failed(lower().launch_host_func(stream, function, argument));
}

status event_create(CUevent_st** event, bool blocking) {
  if (const status error = enter(call::event_create)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaEventCreateWithFlags");
  const status error = failed(lower().event_create(event, blocking));
  if (error == cuda_error::success) events().add(*event, current_device);
  return error;
}

status event_create_timed(CUevent_st** event) {
  if (const status error = enter(call::event_create_timed)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaEventCreate");
  const status error = failed(lower().event_create_timed(event));
  if (error == cuda_error::success) events().add(*event, current_device);
  return error;
}

status event_destroy(CUevent_st* event) {
  if (const status error = enter(call::event_destroy)) return error;
  if (!events().remove(event)) return failed(cuda_error::invalid_resource_handle);
  blank_events().remove(event);
  events_of_frees().remove(event);
  return failed(lower().event_destroy(event));
}

status event_record(CUevent_st* event, CUstream_st* stream) {
  const bool of_frees = freeing_streams().device_of(stream) && !working_streams().device_of(stream);
  const call which = of_frees ? call::event_record_of_frees : call::event_record;
  if (const status error = enter(which)) return error;
  int device = 0;
  if (const status error = find_stream(stream, &device)) return error;
  if (events().device_of(event) != device) return failed(cuda_error::invalid_resource_handle);
  events_of_frees().remove(event);
  if (of_frees) events_of_frees().add(event, device);
  if (skipped(which)) {
    blank_events().add(event, device);
    return cuda_error::success;
  }
  blank_events().remove(event);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaEventRecord");
  return failed(lower().event_record(event, stream));
}

status ask_event(CUevent_st* event, call which) {
  if (const status error = enter(which)) return error;
  const auto device = events().device_of(event);
  if (!device) return failed(cuda_error::invalid_resource_handle);
  return enter_device(*device);
}

status event_query(CUevent_st* event) {
  if (const status error = ask_event(event, call::event_query)) return error;
  return blank_events().device_of(event) ? cuda_error::success : failed(lower().event_query(event));
}

status event_synchronize(CUevent_st* event) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = ask_event(event, call::event_synchronize)) return error;
  if (blank_events().device_of(event)) return cuda_error::success;
  if (const status error = poll([&] { return lower().event_query(event); })) return error;
  return failed(lower().event_synchronize(event));
}

status event_elapsed_time(float* milliseconds, CUevent_st* from, CUevent_st* to) {
  if (const status error = ask_event(from, call::event_elapsed_time)) return error;
  if (events().device_of(from) != events().device_of(to)) return failed(cuda_error::invalid_resource_handle);
  return failed(lower().event_elapsed_time(milliseconds, from, to));
}

status mem_pool_create(CUmemPoolHandle_st** pool, int device, bool exportable) {
  if (const status error = enter(call::mem_pool_create)) return error;
  if (const status error = enter_device(device)) return error;
  const status error = failed(lower().mem_pool_create(pool, gpu_of(device), exportable));
  if (error == cuda_error::success) pools().add(*pool, device);
  return error;
}

status mem_pool_destroy(CUmemPoolHandle_st* pool) {
  if (const status error = enter(call::mem_pool_destroy)) return error;
  pools().remove(pool);
  imported_pools().remove(pool);
  return failed(lower().mem_pool_destroy(pool));
}

status mem_pool_set_release_threshold(CUmemPoolHandle_st* pool, std::uint64_t bytes) {
  if (const status error = enter(call::mem_pool_set_release_threshold)) return error;
  return failed(lower().mem_pool_set_release_threshold(pool, bytes));
}

status mem_pool_set_opportunistic_reuse(CUmemPoolHandle_st* pool, bool allowed) {
  if (const status error = enter(call::mem_pool_set_opportunistic_reuse)) return error;
  return failed(lower().mem_pool_set_opportunistic_reuse(pool, allowed));
}

status mem_pool_usage(CUmemPoolHandle_st* pool, std::uint64_t* reserved, std::uint64_t* used) {
  if (const status error = enter(call::mem_pool_usage)) return error;
  return failed(lower().mem_pool_usage(pool, reserved, used));
}

status mem_pool_trim_to(CUmemPoolHandle_st* pool, std::size_t bytes) {
  if (const status error = enter(call::mem_pool_trim_to)) return error;
  const call_in_progress in("cudaMemPoolTrimTo");
  return failed(lower().mem_pool_trim_to(pool, bytes));
}

status mem_pool_set_access(CUmemPoolHandle_st* pool, int device) {
  if (const status error = enter(call::mem_pool_set_access)) return error;
  const int owner = pools().device_of(pool).value_or(0);
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (all.apart.contains({device, owner})) return failed(cuda_error::invalid_device);
  }
  if (gpu_of(device) == gpu_of(owner) && !imported_pools().device_of(pool)) return cuda_error::success;
  return failed(lower().mem_pool_set_access(pool, gpu_of(device)));
}

status mem_pool_export(int* descriptor, CUmemPoolHandle_st* pool) {
  if (const status error = enter(call::mem_pool_export)) return error;
  return failed(lower().mem_pool_export(descriptor, pool));
}

status mem_pool_import(CUmemPoolHandle_st** pool, int descriptor) {
  if (const status error = enter(call::mem_pool_import)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaMemPoolImportFromShareableHandle");
  const status error = failed(lower().mem_pool_import(pool, descriptor));
  if (error == cuda_error::success) {
    pools().add(*pool, current_device);
    imported_pools().add(*pool, current_device);
  }
  return error;
}

status mem_pool_export_pointer(cuda_block_name* name, void* block) {
  if (const status error = enter(call::mem_pool_export_pointer)) return error;
  return failed(lower().mem_pool_export_pointer(name, block));
}

status mem_pool_import_pointer(void** block, CUmemPoolHandle_st* pool, const cuda_block_name* name) {
  if (const status error = enter(call::mem_pool_import_pointer)) return error;
  const call_in_progress in("cudaMemPoolImportPointer");
  if (const status error = lower().mem_pool_import_pointer(block, pool, name)) return failed(error);
  void* start = nullptr;
  std::size_t bytes = 0;
  if (const status error = lower().memory_range(&start, &bytes, *block)) return failed(error);
  const auto before = static_cast<std::size_t>(static_cast<std::byte*>(*block) - static_cast<std::byte*>(start));
  blocks().add({static_cast<std::byte*>(*block), bytes - before, pools().device_of(pool).value_or(0), true});
  return cuda_error::success;
}

status memory_range(void** begin, std::size_t* bytes, const void* address) {
  if (const status error = enter(call::memory_range)) return error;
  return failed(lower().memory_range(begin, bytes, address));
}

// The numbers of this layer share a GPU, but none of them takes the memory of another for its own.
status device_uuid(cuda_uuid* uuid, int device) {
  if (const status error = enter(call::device_uuid)) return error;
  const status error = failed(lower().device_uuid(uuid, gpu_of(device)));
  uuid->back() ^= static_cast<std::byte>(device);
  return error;
}

status malloc_from_pool_async(void** memory, std::size_t bytes, CUmemPoolHandle_st* pool, CUstream_st* stream) {
  if (const status error = enter(call::malloc_from_pool_async)) return error;
  int device = 0;
  if (const status error = find_stream(stream, &device)) return error;
  if (pools().device_of(pool) != device) return failed(cuda_error::invalid_value);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaMallocFromPoolAsync");
  if (const status error = lower().malloc_from_pool_async(memory, bytes, pool, stream)) return failed(error);
  blocks().add({static_cast<std::byte*>(*memory), bytes, device});
  working_streams().add(stream, device);
  return failed(lower().memset_async(*memory, fresh_poison, bytes, stream));
}

status free_async(void* memory, CUstream_st* stream) {
  if (const status error = enter(call::free_async)) return error;
  if (const status error = find_stream(stream)) return error;
  const auto block = blocks().remove(memory);
  if (!block) return failed(cuda_error::invalid_value);
  freeing_streams().add(stream, block->device);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaFreeAsync");
  if (!block->of_another_process) static_cast<void>(lower().memset_async(memory, freed_poison, block->bytes, stream));
  return failed(lower().free_async(memory, stream));
}

status mem_get_info(std::size_t* free, std::size_t* total) {
  if (const status error = enter(call::mem_get_info)) return error;
  if (const status error = enter_device(current_device)) return error;
  return failed(lower().mem_get_info(free, total));
}

status host_alloc(void** memory, std::size_t bytes) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::host_alloc)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaHostAlloc");
  return failed(lower().host_alloc(memory, bytes));
}

status free_host(void* memory) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::free_host)) return error;
  const call_in_progress in("cudaFreeHost");
  return failed(lower().free_host(memory));
}

status memcpy_async(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  if (const status error = enter(call::memcpy_async)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!in_block(to, bytes) || !in_block(from, bytes)) return failed(cuda_error::invalid_value);
  if (is_pageable(to) || is_pageable(from)) synchronized.fetch_add(1, std::memory_order_relaxed);
  working_streams().add(stream, current_device);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaMemcpyAsync");
  return failed(lower().memcpy_async(to, from, bytes, stream));
}

status memcpy_peer_async(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                         CUstream_st* stream) {
  if (const status error = enter(call::memcpy_peer_async)) return error;
  if (const status error = enter_device(to_device)) return error;
  if (const status error = enter_device(from_device)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!in_block(to, bytes) || !in_block(from, bytes)) return failed(cuda_error::invalid_value);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaMemcpyPeerAsync");
  if (gpu_of(to_device) == gpu_of(from_device)) return failed(lower().memcpy_async(to, from, bytes, stream));
  return failed(lower().memcpy_peer_async(to, gpu_of(to_device), from, gpu_of(from_device), bytes, stream));
}

status memset_async(void* memory, int value, std::size_t bytes, CUstream_st* stream) {
  if (const status error = enter(call::memset_async)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!in_block(memory, bytes)) return failed(cuda_error::invalid_value);
  working_streams().add(stream, current_device);
  const auto queueing = gate::instance().entrance();
  const call_in_progress in("cudaMemsetAsync");
  return failed(lower().memset_async(memory, value, bytes, stream));
}

status pointer_get_attributes(const void* memory, cuda_memory* type, int* device) {
  if (const status error = enter(call::pointer_get_attributes)) return error;
  const status error = failed(lower().pointer_get_attributes(memory, type, device));
  if (const auto block = blocks().around(memory)) *device = block->device;
  return error;
}

status load_kernel(const void* entry) {
  if (const status error = enter(call::load_kernel)) return error;
  if (const status error = enter_device(current_device)) return error;
  const call_in_progress in("cudaFuncGetAttributes");
  return failed(lower().load_kernel(entry));
}

// Functions that are not here are those of the runtime below.
const cuda_runtime& functions() {
  static const cuda_runtime all = [] {
    cuda_runtime made = lower();
    made.get_device_count = &get_device_count;
    made.get_device = &get_device;
    made.set_device = &set_device;
    made.device_has_context = &device_has_context;
    made.device_can_access_peer = &device_can_access_peer;
    made.device_enable_peer_access = &device_enable_peer_access;
    made.device_has_memory_pools = &device_has_memory_pools;
    made.device_has_exportable_pools = &device_has_exportable_pools;
    made.get_versions = &get_versions;
    made.thread_exchange_stream_capture_mode = &thread_exchange_stream_capture_mode;
    made.stream_is_capturing = &stream_is_capturing;
    made.get_last_error = &get_last_error;
    made.get_error_string = &get_error_string;
    made.stream_create = &stream_create;
    made.stream_destroy = &stream_destroy;
    made.stream_query = &stream_query;
    made.stream_synchronize = &stream_synchronize;
    made.stream_wait_event = &stream_wait_event;
    made.launch_host_func = &launch_host_func;
    made.event_create = &event_create;
    made.event_create_timed = &event_create_timed;
    made.event_destroy = &event_destroy;
    made.event_record = &event_record;
    made.event_query = &event_query;
    made.event_synchronize = &event_synchronize;
    made.event_elapsed_time = &event_elapsed_time;
    made.mem_pool_create = &mem_pool_create;
    made.mem_pool_destroy = &mem_pool_destroy;
    made.mem_pool_set_release_threshold = &mem_pool_set_release_threshold;
    made.mem_pool_set_opportunistic_reuse = &mem_pool_set_opportunistic_reuse;
    made.mem_pool_usage = &mem_pool_usage;
    made.mem_pool_trim_to = &mem_pool_trim_to;
    made.mem_pool_set_access = &mem_pool_set_access;
    made.mem_pool_export = &mem_pool_export;
    made.mem_pool_import = &mem_pool_import;
    made.mem_pool_export_pointer = &mem_pool_export_pointer;
    made.mem_pool_import_pointer = &mem_pool_import_pointer;
    made.memory_range = &memory_range;
    made.device_uuid = &device_uuid;
    made.malloc_from_pool_async = &malloc_from_pool_async;
    made.free_async = &free_async;
    made.mem_get_info = &mem_get_info;
    made.host_alloc = &host_alloc;
    made.free_host = &free_host;
    made.memcpy_async = &memcpy_async;
    made.memcpy_peer_async = &memcpy_peer_async;
    made.memset_async = &memset_async;
    made.pointer_get_attributes = &pointer_get_attributes;
    made.load_kernel = &load_kernel;
    return made;
  }();
  return all;
}

// ---------------------------------------------------------------- kernels

const tensor_kernels& lower_table(const tensor_kernels*) { return *real_cuda::lower_tensor_kernels(); }
const arithmetic_kernels& lower_table(const arithmetic_kernels*) { return *real_cuda::lower_arithmetic_kernels(); }

// An entry of a table that starts that of the table below on the stream behind the handle.
template <auto Entry>
struct counted_start;
template <class Table, class... A, int (*Table::*Entry)(CUstream_st*, A...)>
struct counted_start<Entry> {
  static int start(CUstream_st* stream, A... arguments) {
    if (const status error = enter(call::launch_kernel)) return error;
    int device = 0;
    if (const status error = find_stream(stream, &device)) return error;
    if (device != current_device) return failed(cuda_error::invalid_resource_handle);
    const auto queueing = gate::instance().entrance();
    const call_in_progress in("cudaLaunchKernel");
    return failed((lower_table(static_cast<const Table*>(nullptr)).*Entry)(stream, arguments...));
  }
};

template <class Table, auto... Entries>
constexpr Table counted_table() {
  static_assert(sizeof(Table) == sizeof...(Entries) * sizeof(void (*)()), "an entry of the table is missing here");
  Table made{};
  ((made.*Entries = &counted_start<Entries>::start), ...);
  return made;
}

constexpr tensor_kernels kernels =
    counted_table<tensor_kernels, &tensor_kernels::copy, &tensor_kernels::convert, &tensor_kernels::fill>();
constexpr arithmetic_kernels arithmetic =
    counted_table<arithmetic_kernels, &arithmetic_kernels::combine, &arithmetic_kernels::combine_number,
                  &arithmetic_kernels::sum, &arithmetic_kernels::function, &arithmetic_kernels::function_gradient,
                  &arithmetic_kernels::pair, &arithmetic_kernels::pair_gradient, &arithmetic_kernels::compare,
                  &arithmetic_kernels::choose, &arithmetic_kernels::softmax, &arithmetic_kernels::softmax_gradient,
                  &arithmetic_kernels::logsumexp, &arithmetic_kernels::extreme, &arithmetic_kernels::scatter_add,
                  &arithmetic_kernels::gather, &arithmetic_kernels::gemm>();

// Before main(), so before anything of ferry asks for devices.
const bool installed = [] {
  // A kernel that is loaded when it is first started may wait for the device, which a test may be holding.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ferry::detail::use_cuda_runtime(&functions());
  ferry::detail::use_tensor_kernels(real_cuda::lower_tensor_kernels() ? &kernels : nullptr);
  ferry::detail::use_arithmetic_kernels(real_cuda::lower_arithmetic_kernels() ? &arithmetic : nullptr);
  ferry::detail::use_cublas(nullptr);  // it knows nothing of the streams that stand for default ones
  return true;
}();

}  // namespace

int device_count() {
  static const int count = [] {
    const char* text = std::getenv("FERRY_FAKE_CUDA_DEVICES");
    const int asked = text ? std::atoi(text) : 8;
    if (asked != 0) static_cast<void>(real_cuda::gpus());
    return asked;
  }();
  return count;
}

std::uint64_t calls(call which) { return counted[static_cast<std::size_t>(which)].load(std::memory_order_relaxed); }
std::uint64_t host_synchronizations() { return synchronized.load(std::memory_order_relaxed); }

std::vector<int> contexts() {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  return {all.contexts.begin(), all.contexts.end()};
}

pause::pause() { gate::instance().close(); }
pause::~pause() { gate::instance().open(); }
void set_schedule(schedule) {}
void set_delay(unsigned) {}
void drain() { static_cast<void>(gate::instance().wait_until_idle()); }
bool busy() { return !gate::instance().idle(); }

void fail(call which, int error, unsigned nth) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.failures[static_cast<std::size_t>(which)].push_back({nth, error});
}

void skip(call which, unsigned nth) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.skips[static_cast<std::size_t>(which)] = nth;
}

void fail_nothing() {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  for (auto& plans : all.failures) plans.clear();
  all.skips.fill(0);
}

void break_device(int device, int error) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.broken[static_cast<std::size_t>(device)] = error;
}

void mend() {
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    std::fill(all.broken.begin(), all.broken.end(), 0);
  }
  ferry::detail::lift_cuda_fences();
}

void unload() { unloaded.store(true); }

void set_peer_access(int from, int to, bool can) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  if (can) {
    all.apart.erase({from, to});
  } else {
    all.apart.insert({from, to});
  }
}

void set_memory_pools(bool supported) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.memory_pools = supported;
}

void set_exportable_pools(bool supported) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.exportable_pools = supported;
}

void set_memory(std::size_t) { throw std::logic_error("a GPU has the memory that it has"); }

std::vector<unsigned char> peek(const void* memory, std::size_t bytes) {
  std::vector<unsigned char> seen(bytes);
  const auto block = blocks().around(memory);
  const status error = gate::instance().copy_now(block ? block->device : 0, seen.data(), memory, bytes, true);
  if (error != cuda_error::success) throw std::runtime_error("memory of a device cannot be read");
  return seen;
}

void poke(void* memory, std::span<const unsigned char> bytes) {
  const auto block = blocks().around(memory);
  const status error = gate::instance().copy_now(block ? block->device : 0, memory, bytes.data(), bytes.size(), false);
  if (error != cuda_error::success) throw std::runtime_error("memory of a device cannot be written");
}

std::size_t blocks_in_use(int device) { return blocks().count(device); }

bool host_is_kept_out() { return false; }
host_access::host_access() = default;
host_access::~host_access() = default;

}  // namespace fake_cuda

// The functions of the double, as ferry calls them.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include <device/cuda/cuda_runtime.hpp>
#include <device/cuda/cuda_scope.hpp>
#include <ops/cublas.hpp>
#include <ops/kernels.hpp>
#include <tensor/kernels.hpp>

#include "captures.hpp"
#include "executor.hpp"
#include "launcher.hpp"
#include "memory.hpp"

namespace fake_cuda {
namespace {

namespace cuda_error = ferry::detail::cuda_error;
using ferry::detail::cuda_block_name;
using ferry::detail::cuda_capture_mode;
using ferry::detail::cuda_memory;
using ferry::detail::cuda_runtime;
using ferry::detail::cuda_uuid;
using status = ferry::detail::cuda_status;

constexpr auto call_count = static_cast<std::size_t>(call::count_);
constexpr status launch_timeout = 702;

// What does not belong to streams or memory.
struct machine {
  std::mutex mutex;
  struct planned {
    unsigned after = 0;
    status error = 0;
  };
  std::array<std::vector<planned>, call_count> failures;
  std::array<unsigned, call_count> skips{};      // 0: none
  std::vector<status> broken;                    // by device; 0: works
  std::set<int> contexts;                        // devices that have one
  std::set<std::pair<int, int>> apart;           // pairs whose first does not reach the second
  std::set<std::pair<int, int>> peers;           // pairs whose access has been enabled
  std::set<std::pair<const void*, int>> loaded;  // kernels, and the devices that they have been loaded for
  bool memory_pools = true;
  bool exportable_pools = true;
  int driver_version = 12040;
  int runtime_version = 12040;
};

std::array<std::atomic<std::uint64_t>, call_count> counted{};
std::atomic<std::uint64_t> synchronized{0};
std::atomic<std::uint64_t> spun{0};
std::atomic<std::uint64_t> created{0};
std::atomic<bool> creations_block{false};
std::atomic<bool> unloaded{false};
thread_local int current_device = 0;
thread_local status last_error_of_thread = 0;

int devices_from_environment() {
  const char* text = std::getenv("FERRY_FAKE_CUDA_DEVICES");
  return text ? std::atoi(text) : 8;
}

machine& the_machine() {
  static auto* const all = [] {
    auto* fresh = new machine;
    fresh->broken.resize(static_cast<std::size_t>(device_count()));
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
  if (error != cuda_error::success) last_error_of_thread = error;
  return error;
}

// Those that may be made at any time while a graph is captured, whatever the mode of the thread; what is queued on a stream is
// looked at by itself.
bool safe_in_captures(call which) {
  switch (which) {
    case call::get_device_count:
    case call::get_device:
    case call::set_device:
    case call::device_has_context:
    case call::device_can_access_peer:
    case call::device_has_memory_pools:
    case call::device_has_exportable_pools:
    case call::get_versions:
    case call::thread_exchange_stream_capture_mode:
    case call::stream_is_capturing:
    case call::stream_wait_event:
    case call::stream_wait_event_of_frees:
    case call::event_record:
    case call::event_record_of_frees:
    case call::launch_host_func:
    case call::memcpy_async:
    case call::memcpy_peer_async:
    case call::memset_async:
    case call::pointer_get_attributes:
    case call::launch_kernel: return true;
    default: return false;
  }
}

// Something is made for which the device may have to stand still.
status create_on(int device) {
  created.fetch_add(1, std::memory_order_relaxed);
  if (!creations_block.load(std::memory_order_relaxed)) return cuda_error::success;
  return executor::instance().wait_for_device(device) ? cuda_error::success : failed(launch_timeout);
}

// At the start of every call: counts it, and says whether it fails.
status enter(call which) {
  const auto place = static_cast<std::size_t>(which);
  counted[place].fetch_add(1, std::memory_order_relaxed);
  if (unloaded.load(std::memory_order_relaxed)) return cuda_error::runtime_unloading;
  if (on_executor()) return failed(cuda_error::not_permitted);
  if (!safe_in_captures(which)) {
    if (const status error = check_unsafe_call()) return failed(error);
  }
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

// What a call says that has seen work end: a device that broke since the call began has dropped the work instead.
status ended_on(int device) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  const status error = all.broken[static_cast<std::size_t>(device)];
  return error == 0 ? cuda_error::success : failed(error);
}

// The call is about this device, which has a context from now on.
status enter_device(int device) {
  machine& all = the_machine();
  {
    const std::lock_guard lock(all.mutex);
    if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
    if (all.broken[static_cast<std::size_t>(device)] != 0) return failed(all.broken[static_cast<std::size_t>(device)]);
    if (!all.contexts.insert(device).second) return cuda_error::success;
  }
  if (const status error = check_unsafe_call()) return failed(error);
  return create_on(device);
}

// Queues work on a stream, or adds it to the graph that is made of the stream.
status submit(CUstream_st* stream, std::function<void()> run, std::vector<marker_ptr> needs = {},
              bool on_host_thread = false) {
  switch (record_node(stream)) {
    case capture_verdict::recorded: return cuda_error::success;
    case capture_verdict::refused: return failed(cuda_error::capture_invalidated);
    case capture_verdict::none: break;
  }
  stream->worked.store(true);
  executor::instance().enqueue(stream, std::move(run), std::move(needs), on_host_thread);
  return cuda_error::success;
}

// The stream behind a handle; the default one is that of the current device.
status find_stream(CUstream_st*& stream) {
  if (!stream || stream == ferry::detail::legacy_stream()) {
    if (const status error = enter_device(current_device)) return error;
    stream = executor::instance().legacy(current_device);
    return cuda_error::success;
  }
  if (!executor::instance().knows(stream)) return failed(cuda_error::invalid_resource_handle);
  return enter_device(stream->device);
}

// A new handle may have the address of one that is gone: those in use are in this list.
struct event_list {
  std::mutex mutex;
  std::set<CUevent_st*> alive;
};
event_list& events() {
  static auto* const all = new event_list;
  return *all;
}
bool alive(CUevent_st* event) {
  const std::lock_guard lock(events().mutex);
  return events().alive.contains(event);
}

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
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  *can = device != peer && !all.apart.contains({device, peer}) ? 1 : 0;
  return cuda_error::success;
}

status device_enable_peer_access(int peer) {
  if (const status error = enter(call::device_enable_peer_access)) return error;
  if (const status error = enter_device(current_device)) return error;
  if (const status error = enter_device(peer)) return error;
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (all.apart.contains({current_device, peer})) return failed(cuda_error::invalid_device);
    if (!all.peers.insert({current_device, peer}).second) return failed(cuda_error::peer_access_already_enabled);
  }
  return create_on(current_device);
}

status device_has_memory_pools(int* has, int device) {
  if (const status error = enter(call::device_has_memory_pools)) return error;
  if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  *has = all.memory_pools ? 1 : 0;
  return cuda_error::success;
}

status device_has_exportable_pools(int* has, int device) {
  if (const status error = enter(call::device_has_exportable_pools)) return error;
  if (device < 0 || device >= device_count()) return failed(cuda_error::invalid_device);
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  *has = all.exportable_pools ? 1 : 0;
  return cuda_error::success;
}

status get_versions(int* driver, int* runtime) {
  if (const status error = enter(call::get_versions)) return error;
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  *driver = all.driver_version;
  *runtime = all.runtime_version;
  return cuda_error::success;
}

status thread_exchange_stream_capture_mode(cuda_capture_mode* mode) {
  if (const status error = enter(call::thread_exchange_stream_capture_mode)) return error;
  *mode = static_cast<cuda_capture_mode>(exchange_capture_mode(static_cast<int>(*mode)));
  return cuda_error::success;
}

status stream_is_capturing(CUstream_st* stream, bool* capturing) {
  if (const status error = enter(call::stream_is_capturing)) return error;
  if (const status error = find_stream(stream)) return error;
  *capturing = is_capturing(stream);
  return cuda_error::success;
}

status get_last_error() { return std::exchange(last_error_of_thread, cuda_error::success); }

const char* get_error_string(status error) {
  switch (error) {
    case cuda_error::success: return "no error";
    case cuda_error::invalid_value: return "invalid argument";
    case cuda_error::memory_allocation: return "out of memory";
    case cuda_error::runtime_unloading: return "driver shutting down";
    case cuda_error::no_device: return "no CUDA-capable device is detected";
    case cuda_error::invalid_device: return "invalid device ordinal";
    case cuda_error::invalid_resource_handle: return "invalid resource handle";
    case cuda_error::not_ready: return "device not ready";
    case launch_timeout: return "the launch timed out and was terminated";
    case cuda_error::launch_failure: return "unspecified launch failure";
    case cuda_error::not_permitted: return "operation not permitted";
    case cuda_error::not_supported: return "operation not supported";
    case cuda_error::insufficient_driver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cuda_error::peer_access_already_enabled: return "peer access is already enabled";
    case cuda_error::capture_unsupported: return "operation not permitted when stream is capturing";
    case cuda_error::capture_invalidated: return "operation failed due to a previous error during capture";
    case cuda_error::capture_isolation: return "dependency created on uncaptured work in another stream";
    case cuda_error::captured_event: return "operation not permitted on an event last recorded in a capturing stream";
    default: return "unrecognized error code";
  }
}

status stream_create(CUstream_st** stream) {
  if (const status error = enter(call::stream_create)) return error;
  if (const status error = enter_device(current_device)) return error;
  if (const status error = create_on(current_device)) return error;
  *stream = executor::instance().make_stream(current_device);
  return cuda_error::success;
}

status stream_destroy(CUstream_st* stream) {
  if (const status error = enter(call::stream_destroy)) return error;
  if (!executor::instance().knows(stream)) return failed(cuda_error::invalid_resource_handle);
  static_cast<void>(refuse_if_capturing(stream));
  executor::instance().destroy_stream(stream);
  return cuda_error::success;
}

status stream_query(CUstream_st* stream) {
  if (const status error = enter(call::stream_query)) return error;
  if (const status error = find_stream(stream)) return error;
  if (const status error = refuse_if_capturing(stream)) return failed(error);
  return executor::instance().idle(stream) ? ended_on(stream->device) : cuda_error::not_ready;
}

status stream_synchronize(CUstream_st* stream) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::stream_synchronize)) return error;
  if (const status error = find_stream(stream)) return error;
  if (const status error = refuse_if_capturing(stream)) return failed(error);
  executor& all = executor::instance();
  const std::uint64_t before = all.queued();
  if (!all.idle(stream)) {
    spun.fetch_add(1, std::memory_order_relaxed);
    if (!all.wait(all.position(stream))) return failed(launch_timeout);
  }
  all.observe(stream, before);
  return ended_on(stream->device);
}

status stream_wait_event(CUstream_st* stream, CUevent_st* event) {
  const call which = alive(event) && event->of_frees ? call::stream_wait_event_of_frees : call::stream_wait_event;
  if (const status error = enter(which)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!alive(event)) return failed(cuda_error::invalid_resource_handle);
  if (status error = cuda_error::success; wait_in_capture(stream, event, error)) return failed(error);
  if (event->captured && !skipped(which)) {
    executor::instance().enqueue(stream, [] {}, {event->captured});
    executor::instance().follow(stream, event->recorded_on, event->captured);
  }
  return cuda_error::success;
}

status launch_host_func(CUstream_st* stream, void (*function)(void*), void* argument) {
  if (const status error = enter(call::launch_host_func)) return error;
  if (const status error = find_stream(stream)) return error;
  if (skipped(call::launch_host_func)) {
    function(argument);
    return cuda_error::success;
  }
  return submit(
      stream, [function, argument] { function(argument); }, {}, true);
}

status make_event(CUevent_st** event, call which, bool blocking, bool timed) {
  if (const status error = enter(which)) return error;
  if (const status error = enter_device(current_device)) return error;
  auto fresh = std::make_unique<CUevent_st>();
  fresh->device = current_device;
  fresh->for_waiting = blocking;
  fresh->timed = timed;
  const std::lock_guard lock(events().mutex);
  events().alive.insert(fresh.get());
  *event = fresh.release();
  return cuda_error::success;
}

status event_create(CUevent_st** event, bool blocking) {
  return make_event(event, call::event_create, blocking, false);
}

status event_create_timed(CUevent_st** event) { return make_event(event, call::event_create_timed, false, true); }

status event_destroy(CUevent_st* event) {
  if (const status error = enter(call::event_destroy)) return error;
  const std::lock_guard lock(events().mutex);
  if (events().alive.erase(event) == 0) return failed(cuda_error::invalid_resource_handle);
  delete event;
  return cuda_error::success;
}

status event_record(CUevent_st* event, CUstream_st* stream) {
  const bool of_frees = executor::instance().knows(stream) && stream->only_frees();
  const call which = of_frees ? call::event_record_of_frees : call::event_record;
  if (const status error = enter(which)) return error;
  if (const status error = find_stream(stream)) return error;
  if (!alive(event) || event->device != stream->device) return failed(cuda_error::invalid_resource_handle);
  if (record_in_capture(event, stream)) {
    event->captured = nullptr;
    return cuda_error::success;
  }
  event->of_frees = of_frees;
  event->captured = skipped(which) ? nullptr : executor::instance().enqueue(stream, [] {});
  return cuda_error::success;
}

status event_query(CUevent_st* event) {
  if (const status error = enter(call::event_query)) return error;
  if (!alive(event)) return failed(cuda_error::invalid_resource_handle);
  if (const status error = enter_device(event->device)) return error;
  if (const status error = refuse_if_captured(event)) return failed(error);
  return executor::instance().done(event->captured) ? ended_on(event->device) : cuda_error::not_ready;
}

status event_synchronize(CUevent_st* event) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::event_synchronize)) return error;
  if (!alive(event)) return failed(cuda_error::invalid_resource_handle);
  if (const status error = enter_device(event->device)) return error;
  if (const status error = refuse_if_captured(event)) return failed(error);
  if (!event->for_waiting && !executor::instance().done(event->captured)) spun.fetch_add(1, std::memory_order_relaxed);
  if (!executor::instance().wait(event->captured)) return failed(launch_timeout);
  if (event->captured) executor::instance().observe(event->recorded_on, event->captured->number);
  return ended_on(event->device);
}

status event_elapsed_time(float* milliseconds, CUevent_st* from, CUevent_st* to) {
  if (const status error = enter(call::event_elapsed_time)) return error;
  if (!alive(from) || !alive(to) || !from->timed || !to->timed || from->device != to->device)
    return failed(cuda_error::invalid_resource_handle);
  if (const status error = enter_device(from->device)) return error;
  if (const status error = refuse_if_captured(from)) return failed(error);
  if (const status error = refuse_if_captured(to)) return failed(error);
  if (!from->captured || !to->captured) return failed(cuda_error::invalid_resource_handle);
  executor& all = executor::instance();
  if (!all.done(from->captured) || !all.done(to->captured)) return failed(cuda_error::not_ready);
  const std::chrono::duration<float, std::milli> between = all.time_of(to->captured) - all.time_of(from->captured);
  *milliseconds = between.count();
  return cuda_error::success;
}

status mem_pool_create(CUmemPoolHandle_st** pool, int device, bool exportable) {
  if (const status error = enter(call::mem_pool_create)) return error;
  if (const status error = enter_device(device)) return error;
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (!all.memory_pools || (exportable && !all.exportable_pools)) return failed(cuda_error::not_supported);
  }
  if (const status error = create_on(device)) return error;
  auto fresh = std::make_unique<CUmemPoolHandle_st>();
  fresh->device = device;
  fresh->exportable = exportable;
  *pool = fresh.release();
  return cuda_error::success;
}

status mem_pool_destroy(CUmemPoolHandle_st* pool) {
  if (const status error = enter(call::mem_pool_destroy)) return error;
  delete pool;  // only one of another process, or that never had memory, is destroyed
  return cuda_error::success;
}

status mem_pool_set_release_threshold(CUmemPoolHandle_st* pool, std::uint64_t bytes) {
  if (const status error = enter(call::mem_pool_set_release_threshold)) return error;
  pool->threshold = bytes;
  return cuda_error::success;
}

status mem_pool_set_opportunistic_reuse(CUmemPoolHandle_st* pool, bool allowed) {
  if (const status error = enter(call::mem_pool_set_opportunistic_reuse)) return error;
  device_arenas::instance().set_opportunistic(*pool, allowed);
  return cuda_error::success;
}

status mem_pool_usage(CUmemPoolHandle_st* pool, std::uint64_t* reserved, std::uint64_t* used) {
  if (const status error = enter(call::mem_pool_usage)) return error;
  device_arenas::instance().usage(*pool, *reserved, *used);
  return cuda_error::success;
}

status mem_pool_trim_to(CUmemPoolHandle_st* pool, std::size_t bytes) {
  if (const status error = enter(call::mem_pool_trim_to)) return error;
  device_arenas::instance().trim(*pool, bytes);
  return cuda_error::success;
}

status mem_pool_set_access(CUmemPoolHandle_st* pool, int device) {
  if (const status error = enter(call::mem_pool_set_access)) return error;
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  if (all.apart.contains({device, pool->device})) return failed(cuda_error::invalid_device);
  pool->reachable_from.insert(device);
  return cuda_error::success;
}

status mem_pool_export(int* descriptor, CUmemPoolHandle_st* pool) {
  if (const status error = enter(call::mem_pool_export)) return error;
  *descriptor = device_arenas::instance().export_pool(*pool);
  return *descriptor < 0 ? failed(cuda_error::invalid_value) : cuda_error::success;
}

status mem_pool_import(CUmemPoolHandle_st** pool, int descriptor) {
  if (const status error = enter(call::mem_pool_import)) return error;
  if (const status error = enter_device(current_device)) return error;
  if (const status error = create_on(current_device)) return error;
  *pool = device_arenas::instance().import_pool(descriptor).release();
  return *pool ? cuda_error::success : failed(cuda_error::invalid_value);
}

status mem_pool_export_pointer(cuda_block_name* name, void* block) {
  if (const status error = enter(call::mem_pool_export_pointer)) return error;
  return device_arenas::instance().name_block(block, *name) ? cuda_error::success : failed(cuda_error::invalid_value);
}

status mem_pool_import_pointer(void** block, CUmemPoolHandle_st* pool, const cuda_block_name* name) {
  if (const status error = enter(call::mem_pool_import_pointer)) return error;
  if (pool->reachable_from.empty()) return failed(cuda_error::invalid_value);
  *block = device_arenas::instance().map_block(*pool, *name);
  return *block ? cuda_error::success : failed(cuda_error::invalid_value);
}

status memory_range(void** begin, std::size_t* bytes, const void* address) {
  if (const status error = enter(call::memory_range)) return error;
  return device_arenas::instance().range_of(address, *begin, *bytes) ? cuda_error::success
                                                                     : failed(cuda_error::invalid_value);
}

// The same GPUs in every process.
status device_uuid(cuda_uuid* uuid, int device) {
  if (const status error = enter(call::device_uuid)) return error;
  if (const status error = enter_device(device)) return error;
  *uuid = {std::byte{0xfa}, std::byte{0x5e}, static_cast<std::byte>(device)};
  return cuda_error::success;
}

// What is written there before its time, or read, is seen to be wrong.
void poison(void* memory, unsigned char value, std::size_t bytes) { std::memset(memory, value, bytes); }

status malloc_from_pool_async(void** memory, std::size_t bytes, CUmemPoolHandle_st* pool, CUstream_st* stream) {
  if (const status error = enter(call::malloc_from_pool_async)) return error;
  if (const status error = find_stream(stream)) return error;
  if (stream->device != pool->device) return failed(cuda_error::invalid_value);
  if (const status error = refuse_if_capturing(stream)) return failed(error);
  void* block = device_arenas::instance().allocate(*pool, bytes, stream);
  if (!block) return failed(cuda_error::memory_allocation);
  stream->worked.store(true);
  executor::instance().enqueue(stream, [block, bytes] { poison(block, fresh_poison, bytes); });
  *memory = block;
  return cuda_error::success;
}

status free_async(void* memory, CUstream_st* stream) {
  if (const status error = enter(call::free_async)) return error;
  if (const status error = find_stream(stream)) return error;
  if (const status error = refuse_if_capturing(stream)) return failed(error);
  device_arenas& arenas = device_arenas::instance();
  device_arenas::freed_block block;
  if (arenas.begin_unmapping(memory)) {
    executor::instance().enqueue(stream, [memory] { device_arenas::instance().end_unmapping(memory); });
    return cuda_error::success;
  }
  if (!arenas.take_back(memory, block)) return failed(cuda_error::invalid_value);
  stream->freed.store(true);
  auto freed = executor::instance().enqueue(stream, [block] { poison(block.memory, freed_poison, block.bytes); });
  arenas.keep(block, stream, std::move(freed));
  return cuda_error::success;
}

status mem_get_info(std::size_t* free, std::size_t* total) {
  if (const status error = enter(call::mem_get_info)) return error;
  if (const status error = enter_device(current_device)) return error;
  device_arenas::instance().info(current_device, *free, *total);
  return cuda_error::success;
}

status host_alloc(void** memory, std::size_t bytes) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::host_alloc)) return error;
  if (const status error = enter_device(current_device)) return error;
  if (const status error = create_on(current_device)) return error;
  *memory = device_arenas::instance().allocate_pinned(bytes);
  return *memory ? cuda_error::success : failed(cuda_error::memory_allocation);
}

status free_host(void* memory) {
  synchronized.fetch_add(1, std::memory_order_relaxed);
  if (const status error = enter(call::free_host)) return error;
  created.fetch_add(1, std::memory_order_relaxed);
  // It waits for the devices: they may be using it.
  if (!executor::instance().drain()) return failed(launch_timeout);
  return device_arenas::instance().free_pinned(memory) ? cuda_error::success : failed(cuda_error::invalid_value);
}

// In two steps, with time for others to look in between.
marker_ptr enqueue_copy(CUstream_st* stream, void* to, const void* from, std::size_t bytes) {
  executor& all = executor::instance();
  const auto* first = static_cast<const std::byte*>(from);
  const bool apart = first + bytes <= static_cast<std::byte*>(to) || static_cast<std::byte*>(to) + bytes <= first;
  stream->worked.store(true);
  if (apart) all.enqueue(stream, [=] { poison(to, pinned_poison, bytes); });
  return all.enqueue(stream, [=] { std::memmove(to, from, bytes); });
}

status memcpy_async(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  if (const status error = enter(call::memcpy_async)) return error;
  if (const status error = find_stream(stream)) return error;
  device_arenas& arenas = device_arenas::instance();
  const place target = arenas.locate(to, bytes);
  const place source = arenas.locate(from, bytes);
  const bool both_devices = target.what == place::kind::device && source.what == place::kind::device;
  // Memory of another process, on whichever GPU, is for the devices that have been given access.
  if (!target.valid || !source.valid) return failed(cuda_error::invalid_value);
  const bool apart =
      source.readers ? !source.readers->contains(stream->device) : both_devices && target.device != source.device;
  if (apart) return failed(cuda_error::invalid_value);
  executor& all = executor::instance();
  if (source.what == place::kind::pageable || target.what == place::kind::pageable) {
    if (const status error = refuse_if_capturing(stream)) return failed(error);
    // The driver goes through memory of its own, and may have the host wait for it.
    synchronized.fetch_add(1, std::memory_order_relaxed);
    return all.wait(enqueue_copy(stream, to, from, bytes)) ? cuda_error::success : failed(launch_timeout);
  }
  if (record_node(stream) != capture_verdict::none) return cuda_error::success;
  enqueue_copy(stream, to, from, bytes);
  return cuda_error::success;
}

status memcpy_peer_async(void* to, int to_device, const void* from, int from_device, std::size_t bytes,
                         CUstream_st* stream) {
  if (const status error = enter(call::memcpy_peer_async)) return error;
  if (const status error = find_stream(stream)) return error;
  if (const status error = enter_device(to_device)) return error;
  if (const status error = enter_device(from_device)) return error;
  device_arenas& arenas = device_arenas::instance();
  const place target = arenas.locate(to, bytes);
  const place source = arenas.locate(from, bytes);
  if (!target.valid || !source.valid || target.device != to_device || source.device != from_device) {
    return failed(cuda_error::invalid_value);
  }
  if (record_node(stream) != capture_verdict::none) return cuda_error::success;
  enqueue_copy(stream, to, from, bytes);
  return cuda_error::success;
}

status memset_async(void* memory, int value, std::size_t bytes, CUstream_st* stream) {
  if (const status error = enter(call::memset_async)) return error;
  if (const status error = find_stream(stream)) return error;
  const place target = device_arenas::instance().locate(memory, bytes);
  if (!target.valid || target.what != place::kind::device) return failed(cuda_error::invalid_value);
  return submit(stream, [=] { std::memset(memory, value, bytes); });
}

status pointer_get_attributes(const void* memory, cuda_memory* type, int* device) {
  if (const status error = enter(call::pointer_get_attributes)) return error;
  const place where = device_arenas::instance().locate(memory, 1);
  *device = where.device;
  switch (where.what) {
    case place::kind::pageable: *type = cuda_memory::unregistered; break;
    case place::kind::pinned: *type = cuda_memory::host; break;
    case place::kind::device: *type = cuda_memory::device; break;
  }
  return cuda_error::success;
}

status load_kernel(const void* entry) {
  if (const status error = enter(call::load_kernel)) return error;
  if (const status error = enter_device(current_device)) return error;
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    if (!all.loaded.insert({entry, current_device}).second) return cuda_error::success;
  }
  return create_on(current_device);
}

constexpr cuda_runtime functions{
    .get_device_count = &get_device_count,
    .get_device = &get_device,
    .set_device = &set_device,
    .device_has_context = &device_has_context,
    .device_can_access_peer = &device_can_access_peer,
    .device_enable_peer_access = &device_enable_peer_access,
    .device_has_memory_pools = &device_has_memory_pools,
    .device_has_exportable_pools = &device_has_exportable_pools,
    .get_versions = &get_versions,
    .get_last_error = &get_last_error,
    .get_error_string = &get_error_string,
    .thread_exchange_stream_capture_mode = &thread_exchange_stream_capture_mode,
    .stream_is_capturing = &stream_is_capturing,
    .stream_create = &stream_create,
    .stream_destroy = &stream_destroy,
    .stream_query = &stream_query,
    .stream_synchronize = &stream_synchronize,
    .stream_wait_event = &stream_wait_event,
    .launch_host_func = &launch_host_func,
    .event_create = &event_create,
    .event_create_timed = &event_create_timed,
    .event_destroy = &event_destroy,
    .event_record = &event_record,
    .event_query = &event_query,
    .event_synchronize = &event_synchronize,
    .event_elapsed_time = &event_elapsed_time,
    .mem_pool_create = &mem_pool_create,
    .mem_pool_destroy = &mem_pool_destroy,
    .mem_pool_set_release_threshold = &mem_pool_set_release_threshold,
    .mem_pool_set_opportunistic_reuse = &mem_pool_set_opportunistic_reuse,
    .mem_pool_usage = &mem_pool_usage,
    .mem_pool_trim_to = &mem_pool_trim_to,
    .mem_pool_set_access = &mem_pool_set_access,
    .mem_pool_export = &mem_pool_export,
    .mem_pool_import = &mem_pool_import,
    .mem_pool_export_pointer = &mem_pool_export_pointer,
    .mem_pool_import_pointer = &mem_pool_import_pointer,
    .memory_range = &memory_range,
    .device_uuid = &device_uuid,
    .malloc_from_pool_async = &malloc_from_pool_async,
    .free_async = &free_async,
    .mem_get_info = &mem_get_info,
    .host_alloc = &host_alloc,
    .free_host = &free_host,
    .memcpy_async = &memcpy_async,
    .memcpy_peer_async = &memcpy_peer_async,
    .memset_async = &memset_async,
    .pointer_get_attributes = &pointer_get_attributes,
    .load_kernel = &load_kernel,
};

constexpr ferry::detail::tensor_kernels kernels = ferry::detail::make_tensor_kernels<host_launcher>();
constexpr ferry::detail::arithmetic_kernels arithmetic = ferry::detail::make_arithmetic_kernels<host_launcher>();

#ifndef FERRY_FAKE_CUDA_BELOW
// Before main(), so before anything of ferry asks for devices.
const bool installed = [] {
  if (const char* text = std::getenv("FERRY_FAKE_CUDA_CREATIONS_BLOCK")) creations_block.store(std::atoi(text) != 0);
  ferry::detail::use_cuda_runtime(&functions);
  ferry::detail::use_tensor_kernels(&kernels);
  ferry::detail::use_arithmetic_kernels(&arithmetic);
  ferry::detail::use_cublas(nullptr);  // the memory of the double is not a GPU's
  return true;
}();
#endif

}  // namespace

#ifdef FERRY_FAKE_CUDA_BELOW
// For the layer of ../real_cuda, which is installed instead.
const ferry::detail::cuda_runtime& runtime_of_double() { return functions; }
const ferry::detail::tensor_kernels& tensor_kernels_of_double() { return kernels; }
const ferry::detail::arithmetic_kernels& arithmetic_kernels_of_double() { return arithmetic; }
#endif

int start_kernel(CUstream_st* stream, std::function<void()> kernel, const void* entry) {
  if (const status error = enter(call::launch_kernel)) return error;
  if (const status error = find_stream(stream)) return error;
  if (stream->device != current_device) return failed(cuda_error::invalid_resource_handle);
  if (entry) {
    bool fresh = false;
    {
      machine& all = the_machine();
      const std::lock_guard lock(all.mutex);
      fresh = all.loaded.insert({entry, current_device}).second;
    }
    if (fresh) {
      if (const status error = check_unsafe_call()) return failed(error);
      if (const status error = create_on(current_device)) return error;
    }
  }
  return submit(stream, std::move(kernel));
}

int device_count() {
  static const int count = devices_from_environment();
  return count;
}

std::uint64_t calls(call which) { return counted[static_cast<std::size_t>(which)].load(std::memory_order_relaxed); }
std::uint64_t host_synchronizations() { return synchronized.load(std::memory_order_relaxed); }

std::uint64_t busy_waits() { return spun.load(std::memory_order_relaxed); }
std::uint64_t creations() { return created.load(std::memory_order_relaxed); }
void set_creations_block(bool block) { creations_block.store(block, std::memory_order_relaxed); }
int last_error() { return last_error_of_thread; }
void set_last_error(int error) { last_error_of_thread = error; }

std::vector<int> contexts() {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  return {all.contexts.begin(), all.contexts.end()};
}

pause::pause() { executor::instance().begin_pause(); }
pause::~pause() { executor::instance().end_pause(); }
void set_schedule(schedule how) { executor::instance().set_schedule(how); }
void set_delay(unsigned microseconds) { executor::instance().set_delay(microseconds); }
void set_hardware_queues(unsigned queues) { executor::instance().set_hardware_queues(queues); }
void drain() { executor::instance().drain(); }
bool busy() { return executor::instance().busy(); }

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

void refuse_calls(int device, int error) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.broken[static_cast<std::size_t>(device)] = error;
}

void break_device(int device, int error) {
  refuse_calls(device, error);
  executor::instance().drop(device);
}

void mend() {
  {
    machine& all = the_machine();
    const std::lock_guard lock(all.mutex);
    std::fill(all.broken.begin(), all.broken.end(), 0);
  }
  executor::instance().mend();
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

void set_versions(int driver, int runtime) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  all.driver_version = driver;
  all.runtime_version = runtime;
}

bool peer_access_enabled(int from, int to) {
  machine& all = the_machine();
  const std::lock_guard lock(all.mutex);
  return all.peers.contains({from, to});
}

void set_memory(std::size_t bytes_per_device) { device_arenas::instance().set_capacity(bytes_per_device); }

std::vector<unsigned char> peek(const void* memory, std::size_t bytes) {
  const host_access open;
  const auto* first = static_cast<const unsigned char*>(memory);
  return {first, first + bytes};
}

void poke(void* memory, std::span<const unsigned char> bytes) {
  const host_access open;
  std::memcpy(memory, bytes.data(), bytes.size());
}

std::size_t blocks_in_use(int device) { return device_arenas::instance().blocks(device); }

}  // namespace fake_cuda

#include "cuda_memory.hpp"

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/cuda.hpp>

#include "cuda_scope.hpp"

namespace ferry::inline v0::detail {
namespace {

// Reuse of a block that another stream freed costs 10 to 20 microseconds in an opportunistic pool, without growth; nothing in
// one that is not, which grows instead. So blocks below least_large_block come from a pool of the second sort, and others of
// the first. docs/decisions/memory_pools.md has the figures.

struct device_pools {
  CUmemPoolHandle_st* small = nullptr;
  CUmemPoolHandle_st* large = nullptr;  // null: the device has no pools yet
  bool exportable = false;              // the large one
  [[nodiscard]] CUmemPoolHandle_st* for_size(std::size_t bytes) const noexcept {
    return bytes < least_large_block ? small : large;
  }
};

struct pools {
  std::mutex mutex;
  std::vector<device_pools> by_device;
};

// Taken before pools::mutex, and held until the access is there: another thread may copy at once when it finds the pair.
struct opened_peers {
  std::mutex mutex;
  std::set<std::pair<int, int>> pairs;  // the smaller number first
  std::set<int> warm;                   // devices that have been warmed up
};

// Never destroyed: memory may be freed while static objects are destroyed.
pools& all_pools() {
  static auto* const all = new pools;
  return *all;
}

opened_peers& all_opened_peers() {
  static auto* const all = new opened_peers;
  return *all;
}

void check_memory_pools(const cuda_scope& scope, device where) {
  int supported = 0;
  check_cuda(scope->device_has_memory_pools(&supported, where.index), where, "ask for memory pools");
  if (supported == 0) {
    throw_error(
        errc::device_failure,
        fmt::format("{} has no memory pools (cudaDevAttrMemoryPoolsSupported is 0), from which ferry allocates in the "
                    "order of streams: they need a driver for CUDA 11.2 or later, and no virtual GPU without them",
                    to_string(where)));
  }
}

bool can_export_pools(const cuda_scope& scope, device where) noexcept {
  int supported = 0;
  if (scope->device_has_exportable_pools(&supported, where.index) == cuda_error::success) return supported != 0;
  static_cast<void>(scope->get_last_error());  // a driver that does not know the question
  return false;
}

CUmemPoolHandle_st* make_pool(const cuda_scope& scope, device where, bool& exportable, bool opportunistic) {
  CUmemPoolHandle_st* pool = nullptr;
  cuda_status status = scope->mem_pool_create(&pool, where.index, exportable);
  if (status != cuda_error::success && exportable) {  // one that stays in the process is better than none
    static_cast<void>(scope->get_last_error());
    exportable = false;
    status = scope->mem_pool_create(&pool, where.index, false);
  }
  check_cuda(status, where, "create a memory pool");
  // Without this the pool would release everything whenever the host waits for a stream.
  status = scope->mem_pool_set_release_threshold(pool, std::numeric_limits<std::uint64_t>::max());
  if (status == cuda_error::success && !opportunistic) status = scope->mem_pool_set_opportunistic_reuse(pool, false);
  if (status != cuda_error::success) static_cast<void>(scope->mem_pool_destroy(pool));
  check_cuda(status, where, "configure the memory pool");
  return pool;
}

device_pools make_pools(device where) {
  const cuda_scope scope(where);
  check_memory_pools(scope, where);
  device_pools made;
  bool small_exportable = false;
  made.small = make_pool(scope, where, small_exportable, false);
  made.exportable = can_export_pools(scope, where);
  try {
    made.large = make_pool(scope, where, made.exportable, true);
  } catch (...) {
    static_cast<void>(scope->mem_pool_destroy(made.small));
    throw;
  }
  return made;
}

// The device's pools if it has them; does not create them.
device_pools find_pools(device where) {
  pools& all = all_pools();
  const std::lock_guard lock(all.mutex);
  const auto place = static_cast<std::size_t>(where.index);
  return place < all.by_device.size() ? all.by_device[place] : device_pools{};
}

device_pools pools_of(device where) {
  check_device(where);
  pools& all = all_pools();
  const std::lock_guard lock(all.mutex);
  const auto place = static_cast<std::size_t>(where.index);
  if (all.by_device.size() <= place) all.by_device.resize(place + 1);
  device_pools& found = all.by_device[place];
  if (!found.large) found = make_pools(where);
  return found;
}

struct pool_usage {
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
};

// Of both pools.
cuda_status ask_usage(const cuda_scope& scope, const device_pools& of, pool_usage& result) noexcept {
  for (CUmemPoolHandle_st* pool : {of.small, of.large}) {
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;
    if (const cuda_status status = scope->mem_pool_usage(pool, &reserved, &used); status != cuda_error::success)
      return status;
    result.reserved += reserved;
    result.used += used;
  }
  return cuda_error::success;
}

void trim_both(const cuda_scope& scope, device where, const device_pools& both) {
  for (CUmemPoolHandle_st* pool : {both.small, both.large})
    check_cuda(scope->mem_pool_trim_to(pool, 0), where, "release unused memory");
}

[[noreturn]] void refuse_allocation(const cuda_scope& scope, device where, std::size_t bytes, const device_pools& of) {
  pool_usage usage;
  std::size_t free = 0;
  std::size_t total = 0;
  if (ask_usage(scope, of, usage) != cuda_error::success || scope->mem_get_info(&free, &total) != cuda_error::success) {
    static_cast<void>(scope->get_last_error());
  }
  throw_error(errc::out_of_memory,
              fmt::format("cannot allocate {} bytes on {} ({} bytes are in use by tensors of this process; of the "
                          "device's {} bytes, {} are free)",
                          bytes, to_string(where), usage.used, total, free));
}

}  // namespace

void* cuda_allocate(device where, std::size_t bytes, CUstream_st* stream) {
  const device_pools both = pools_of(where);
  CUmemPoolHandle_st* pool = both.for_size(bytes);
  const cuda_scope scope(where);
  void* memory = nullptr;
  cuda_status status = scope->malloc_from_pool_async(&memory, bytes, pool, stream);
  if (status == cuda_error::memory_allocation) {
    // Memory that is needed here may be unused in the other pool, or in this one, in pieces too small.
    static_cast<void>(scope->get_last_error());
    trim_both(scope, where, both);
    status = scope->malloc_from_pool_async(&memory, bytes, pool, stream);
    if (status == cuda_error::memory_allocation && pool == both.small) {
      // What the other pool could not release, this stream may still use in its own order.
      static_cast<void>(scope->get_last_error());
      status = scope->malloc_from_pool_async(&memory, bytes, both.large, stream);
    }
  }
  if (status == cuda_error::memory_allocation) {
    static_cast<void>(scope->get_last_error());
    refuse_allocation(scope, where, bytes, both);
  }
  check_cuda(status, where, "allocate memory");
  return memory;
}

std::uint64_t cuda_reserved_bytes(device where) {
  const device_pools both = find_pools(where);
  if (!both.large) return 0;
  const cuda_scope scope(where);
  pool_usage usage;
  check_cuda(ask_usage(scope, both, usage), where, "query the memory usage");
  return usage.reserved;
}

void cuda_trim(device where) {
  const device_pools both = find_pools(where);
  if (!both.large) return;
  const cuda_scope scope(where);
  trim_both(scope, where, both);
}

std::vector<device> cuda_devices_in_use() {
  pools& all = all_pools();
  const std::lock_guard lock(all.mutex);
  std::vector<device> found;
  for (std::size_t i = 0; i != all.by_device.size(); ++i) {
    if (all.by_device[i].large) found.push_back({device_kind::cuda, static_cast<int>(i)});
  }
  return found;
}

CUmemPoolHandle_st* exportable_cuda_pool(device where) noexcept {
  const device_pools both = find_pools(where);
  return both.exportable ? both.large : nullptr;
}

namespace {

// With the peers' mutex held.
void open_pair(device first, device second) {
  for (const auto& [from, to] : {std::pair(first, second), std::pair(second, first)}) {
    if (!device_traits<cuda>::peer_access(from, to)) continue;
    const device_pools both = pools_of(to);
    const cuda_scope scope(from);
    cuda_status status = scope->mem_pool_set_access(both.small, from.index);
    if (status == cuda_error::success) status = scope->mem_pool_set_access(both.large, from.index);
    if (status == cuda_error::success) status = scope->device_enable_peer_access(to.index);
    if (status == cuda_error::success) continue;
    static_cast<void>(scope->get_last_error());
    if (status == cuda_error::peer_access_already_enabled) continue;  // by the program
    log(log_level::info,
        fmt::format("{} cannot access the memory of {} although peer access is supported, and copies go "
                    "through the host: {}",
                    to_string(from), to_string(to), scope->get_error_string(status)));
  }
}

}  // namespace

void open_cuda_peers(device first, device second) {
  const std::pair<int, int> pair = std::minmax(first.index, second.index);
  opened_peers& all = all_opened_peers();
  const std::lock_guard lock(all.mutex);
  if (all.pairs.contains(pair)) return;
  open_pair(first, second);
  all.pairs.insert(pair);
}

void warm_up_cuda_memory(device where) {
  (void)pools_of(where);
  opened_peers& all = all_opened_peers();
  std::vector<int> others;
  {
    const std::lock_guard lock(all.mutex);
    others.assign(all.warm.begin(), all.warm.end());
    all.warm.insert(where.index);
  }
  for (const int other : others) {
    if (other != where.index) open_cuda_peers(where, {device_kind::cuda, other});
  }
}

}  // namespace ferry::inline v0::detail

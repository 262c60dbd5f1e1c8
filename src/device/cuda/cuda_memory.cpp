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

struct pools {
  std::mutex mutex;
  std::vector<CUmemPoolHandle_st*> by_device;
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

CUmemPoolHandle_st* make_pool(device where) {
  const cuda_scope scope(where);
  int supported = 0;
  check_cuda(scope->device_has_memory_pools(&supported, where.index), where, "ask for memory pools");
  if (supported == 0) {
    throw_error(
        errc::device_failure,
        fmt::format("{} has no memory pools (cudaDevAttrMemoryPoolsSupported is 0), from which ferry allocates in the "
                    "order of streams: they need a driver for CUDA 11.2 or later, and no virtual GPU without them",
                    to_string(where)));
  }
  CUmemPoolHandle_st* pool = nullptr;
  // Not exportable to other processes: such a pool never gives memory back to the device.
  cuda_status status = scope->mem_pool_create(&pool, where.index, false);
  check_cuda(status, where, "create a memory pool");
  // Without this the pool would release everything whenever the host waits for a stream.
  status = scope->mem_pool_set_release_threshold(pool, std::numeric_limits<std::uint64_t>::max());
  if (status != cuda_error::success) static_cast<void>(scope->mem_pool_destroy(pool));
  check_cuda(status, where, "configure the memory pool");
  return pool;
}

// The device's pool if it has one; does not create it.
CUmemPoolHandle_st* find_pool(device where) {
  pools& all = all_pools();
  const std::lock_guard lock(all.mutex);
  const auto place = static_cast<std::size_t>(where.index);
  return place < all.by_device.size() ? all.by_device[place] : nullptr;
}

CUmemPoolHandle_st* memory_pool_of(device where) {
  check_device(where);
  pools& all = all_pools();
  const std::lock_guard lock(all.mutex);
  const auto place = static_cast<std::size_t>(where.index);
  if (all.by_device.size() <= place) all.by_device.resize(place + 1);
  CUmemPoolHandle_st*& pool = all.by_device[place];
  if (!pool) pool = make_pool(where);
  return pool;
}

[[noreturn]] void refuse_allocation(const cuda_scope& scope, device where, std::size_t bytes,
                                    CUmemPoolHandle_st* pool) {
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
  std::size_t free = 0;
  std::size_t total = 0;
  if (scope->mem_pool_usage(pool, &reserved, &used) != cuda_error::success ||
      scope->mem_get_info(&free, &total) != cuda_error::success) {
    static_cast<void>(scope->get_last_error());
  }
  throw_error(errc::out_of_memory,
              fmt::format("cannot allocate {} bytes on {} ({} bytes are in use by tensors of this process; of the "
                          "device's {} bytes, {} are free)",
                          bytes, to_string(where), used, total, free));
}

}  // namespace

void* cuda_allocate(device where, std::size_t bytes, CUstream_st* stream) {
  CUmemPoolHandle_st* pool = memory_pool_of(where);
  const cuda_scope scope(where);
  void* memory = nullptr;
  cuda_status status = scope->malloc_from_pool_async(&memory, bytes, pool, stream);
  if (status == cuda_error::memory_allocation) {
    // Memory that other pools and processes need may be unused in this one, in pieces too small.
    static_cast<void>(scope->get_last_error());
    check_cuda(scope->mem_pool_trim_to(pool, 0), where, "release unused memory");
    status = scope->malloc_from_pool_async(&memory, bytes, pool, stream);
  }
  if (status == cuda_error::memory_allocation) {
    static_cast<void>(scope->get_last_error());
    refuse_allocation(scope, where, bytes, pool);
  }
  check_cuda(status, where, "allocate memory");
  return memory;
}

std::uint64_t cuda_reserved_bytes(device where) {
  CUmemPoolHandle_st* pool = find_pool(where);
  if (!pool) return 0;
  const cuda_scope scope(where);
  std::uint64_t reserved = 0;
  std::uint64_t used = 0;
  check_cuda(scope->mem_pool_usage(pool, &reserved, &used), where, "query the memory usage");
  return reserved;
}

void cuda_trim(device where) {
  CUmemPoolHandle_st* pool = find_pool(where);
  if (!pool) return;
  const cuda_scope scope(where);
  check_cuda(scope->mem_pool_trim_to(pool, 0), where, "release unused memory");
}

namespace {

// With the peers' mutex held.
void open_pair(device first, device second) {
  for (const auto& [from, to] : {std::pair(first, second), std::pair(second, first)}) {
    if (!device_traits<cuda>::peer_access(from, to)) continue;
    CUmemPoolHandle_st* pool = memory_pool_of(to);
    const cuda_scope scope(from);
    cuda_status status = scope->mem_pool_set_access(pool, from.index);
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
  (void)memory_pool_of(where);
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

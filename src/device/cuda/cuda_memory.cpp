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
  std::set<std::pair<int, int>> peers;  // pairs for which access was requested, the smaller number first
};

// Never destroyed: memory may be freed while static objects are destroyed.
pools& all_pools() {
  static auto* const all = new pools;
  return *all;
}

CUmemPoolHandle_st* make_pool(device where) {
  const cuda_scope scope(where);
  CUmemPoolHandle_st* pool = nullptr;
  cuda_status status = scope->mem_pool_create(&pool, where.index, true);
  if (status != cuda_error::success) {
    // Not every system supports exporting memory to other processes.
    static_cast<void>(scope->get_last_error());
    status = scope->mem_pool_create(&pool, where.index, false);
  }
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

void open_cuda_peers(device first, device second) {
  const std::pair<int, int> pair = std::minmax(first.index, second.index);
  pools& all = all_pools();
  {
    const std::lock_guard lock(all.mutex);
    if (!all.peers.insert(pair).second) return;
  }
  for (const auto& [from, to] : {std::pair(first, second), std::pair(second, first)}) {
    if (!device_traits<cuda>::peer_access(from, to)) continue;
    CUmemPoolHandle_st* pool = memory_pool_of(to);
    const cuda_scope scope(from);
    const cuda_status status = scope->mem_pool_set_access(pool, from.index);
    if (status == cuda_error::success) continue;
    static_cast<void>(scope->get_last_error());  // copies then go through the host
    log(log_level::info, fmt::format("{} cannot access the memory of {} although peer access is supported: {}",
                                     to_string(from), to_string(to), scope->get_error_string(status)));
  }
}

}  // namespace ferry::inline v0::detail

#include "memory.hpp"

#include "shared_memory.hpp"

#include <sys/mman.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace fake_cuda {
namespace {

std::size_t rounded(std::size_t bytes) { return (bytes + granule - 1) / granule * granule; }

// Whether a stream may have the block. A wait for an event counts if that event was recorded on the very stream that freed.
bool usable(const CUmemPoolHandle_st& pool, const CUmemPoolHandle_st::kept& block, const CUstream_st* stream) {
  executor& all = executor::instance();
  return block.stream == stream || all.follows(stream, block.stream, block.freed) ||
         all.observed(block.stream, block.freed) || (pool.opportunistic && all.done(block.freed));
}

}  // namespace

device_arenas& device_arenas::instance() {
  static auto* const all = new device_arenas;
  return *all;
}

device_arenas::device_arenas() : arenas_(2 * static_cast<std::size_t>(device_count())) {
  if (const char* mebibytes = std::getenv("FERRY_FAKE_CUDA_MEMORY"))
    capacity_ = std::min(static_cast<std::size_t>(std::atoi(mebibytes)) << 20, arena_size);
  key_ = ::pkey_alloc(0, PKEY_DISABLE_ACCESS);
  for (std::size_t i = 0; i != arenas_.size(); ++i) {
    arenas_[i].device = static_cast<int>(i / 2);
    if (i % 2 == 0) map(arenas_[i], false);
  }
}

void device_arenas::map(arena& which, bool shared) {
  if (shared) {
    which.file = make_shared_memory();
    which.opened_by = openers_of(which.file, which.device);
  }
  const int flags = shared ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* start = ::mmap(nullptr, arena_size, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, which.file, 0);
  if (start == MAP_FAILED) {
    std::fputs("fake_cuda: no addresses for the memory of a device\n", stderr);
    std::abort();
  }
  if (key_ >= 0) ::pkey_mprotect(start, arena_size, PROT_READ | PROT_WRITE, key_);
  which.start = static_cast<std::byte*>(start) + promised_alignment;
}

device_arenas::arena& device_arenas::arena_of(const CUmemPoolHandle_st& pool) {
  arena& found = arenas_[2 * static_cast<std::size_t>(pool.device) + (pool.exportable ? 1 : 0)];
  if (!found.start) map(found, true);
  return found;
}

std::size_t device_arenas::taken_of(int device) const {
  const auto first = 2 * static_cast<std::size_t>(device);
  return arenas_[first].taken + arenas_[first + 1].taken;
}

std::byte* device_arenas::carve(arena& from, std::size_t bytes, CUmemPoolHandle_st& pool) {
  if (bytes > capacity_ || taken_of(from.device) > capacity_ - bytes) return nullptr;
  std::byte* at = from.start;
  for (const auto& [start, taken] : from.blocks) {
    if (static_cast<std::size_t>(start - at) >= bytes) break;
    at = start + taken.bytes;
  }
  if (static_cast<std::size_t>(from.start + (arena_size - promised_alignment) - at) < bytes) return nullptr;
  from.blocks[at] = {bytes, &pool, true};
  from.taken += bytes;
  pool.reserved += bytes;
  return at;
}

void* device_arenas::allocate(CUmemPoolHandle_st& pool, std::size_t bytes, CUstream_st* stream) {
  const std::lock_guard lock(mutex_);
  const std::size_t size = rounded(bytes);
  arena& from = arena_of(pool);
  // The last one given back first: what must not be used yet is in danger as soon as possible.
  for (std::size_t i = pool.cache.size(); i-- != 0;) {
    CUmemPoolHandle_st::kept& each = pool.cache[i];
    if (each.bytes < size || each.bytes > 2 * size) continue;
    if (!usable(pool, each, stream)) continue;
    std::byte* memory = each.memory;
    from.blocks[memory].in_use = true;
    pool.used += each.bytes;
    pool.cache.erase(pool.cache.begin() + static_cast<std::ptrdiff_t>(i));
    return memory;
  }
  std::byte* memory = carve(from, size, pool);
  if (memory) pool.used += size;
  return memory;
}

bool device_arenas::take_back(void* memory, freed_block& out) {
  const std::lock_guard lock(mutex_);
  for (arena& each : arenas_) {
    const auto found = each.blocks.find(static_cast<std::byte*>(memory));
    if (found == each.blocks.end() || !found->second.in_use) continue;
    check_not_open_elsewhere(each, found->first);
    found->second.in_use = false;
    found->second.pool->used -= found->second.bytes;
    out = {found->second.pool, found->first, found->second.bytes};
    return true;
  }
  return false;
}

void device_arenas::keep(const freed_block& block, CUstream_st* stream, marker_ptr freed) {
  const std::lock_guard lock(mutex_);
  block.pool->cache.push_back({block.memory, block.bytes, stream, std::move(freed)});
}

void device_arenas::trim(CUmemPoolHandle_st& pool, std::size_t keep) {
  const std::lock_guard lock(mutex_);
  arena& from = arena_of(pool);
  std::erase_if(pool.cache, [&](const CUmemPoolHandle_st::kept& each) {
    if (pool.reserved <= keep || !executor::instance().observed(each.stream, each.freed)) return false;
    from.blocks.erase(each.memory);
    from.taken -= each.bytes;
    pool.reserved -= each.bytes;
    return true;
  });
}

void device_arenas::set_opportunistic(CUmemPoolHandle_st& pool, bool allowed) {
  const std::lock_guard lock(mutex_);
  pool.opportunistic = allowed;
}

void device_arenas::usage(const CUmemPoolHandle_st& pool, std::uint64_t& reserved, std::uint64_t& used) {
  const std::lock_guard lock(mutex_);
  reserved = pool.reserved;
  used = pool.used;
}

void device_arenas::info(int device, std::size_t& free, std::size_t& total) {
  const std::lock_guard lock(mutex_);
  const std::size_t taken = taken_of(device);
  total = capacity_;
  free = taken < capacity_ ? capacity_ - taken : 0;
}

void device_arenas::set_capacity(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  capacity_ = std::min(bytes, arena_size);
}

std::size_t device_arenas::blocks(int device) {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const arena& each : arenas_) {
    if (each.device != device) continue;
    for (const auto& [start, taken] : each.blocks) count += taken.in_use ? 1 : 0;
  }
  return count;
}

place device_arenas::locate(const void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto* at = const_cast<std::byte*>(static_cast<const std::byte*>(memory));
  for (const arena& each : arenas_) {
    if (!each.start || at < each.start || at >= each.start + (arena_size - promised_alignment)) continue;
    auto found = each.blocks.upper_bound(at);
    bool valid = false;
    if (found != each.blocks.begin()) {
      --found;
      valid = found->second.in_use && at + bytes <= found->first + found->second.bytes;
    }
    return {place::kind::device, each.device, nullptr, valid};
  }
  if (auto found = mapped_.upper_bound(at); found != mapped_.begin()) {
    --found;
    const mapped_block& of = found->second;
    if (at < found->first + of.bytes)
      return {place::kind::device, of.device, of.readers, !of.closing && at + bytes <= found->first + of.bytes};
  }
  auto found = pinned_.upper_bound(at);
  if (found != pinned_.begin()) {
    --found;
    if (at + bytes <= found->first + found->second) return {place::kind::pinned, -1, nullptr, true};
  }
  return {};
}

void* device_arenas::allocate_pinned(std::size_t bytes) {
  void* memory = ::operator new(std::max(rounded(bytes), granule), std::align_val_t{4096}, std::nothrow);
  if (!memory) return nullptr;
  const std::lock_guard lock(mutex_);
  pinned_[static_cast<std::byte*>(memory)] = bytes;
  return memory;
}

bool device_arenas::free_pinned(void* memory) {
  {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(static_cast<std::byte*>(memory)) == 0) return false;
  }
  ::operator delete(memory, std::align_val_t{4096});
  return true;
}

void keep_memory_open() {
  const int key = device_arenas::instance().key();
  if (key >= 0) ::pkey_set(key, 0);
}

bool host_is_kept_out() { return device_arenas::instance().key() >= 0; }

host_access::host_access() {
  const int key = device_arenas::instance().key();
  if (key < 0) return;
  former_ = ::pkey_get(key);
  ::pkey_set(key, 0);
}

host_access::~host_access() {
  const int key = device_arenas::instance().key();
  if (key >= 0) ::pkey_set(key, static_cast<unsigned>(former_));
}

}  // namespace fake_cuda

#include "pinned_memory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t smallest_class = std::countr_zero(pinned_block::smallest_size);
constexpr std::size_t classes = 48;

struct waiting_block {
  void* memory = nullptr;
  event last_use;
};

// Memory page-locked for one CUDA device is so for all. Never destroyed, like the devices' own state.
struct pinned_pool {
  std::mutex mutex;
  std::array<std::vector<void*>, classes> free;
  std::array<std::vector<waiting_block>, classes> waiting;
  std::atomic<std::uint64_t> in_use{0};
  std::atomic<std::uint64_t> lost{0};
  std::atomic<std::uint64_t> reserved_bytes{0};
};

// One for each kind of device.
pinned_pool& pinned_pool_of(device where) {
  static auto* const pools = new std::array<pinned_pool, 256>;
  return (*pools)[static_cast<std::size_t>(where.kind)];
}

std::size_t pinned_class_of(std::size_t bytes) {
  const auto wanted = static_cast<std::size_t>(std::bit_width(bytes == 0 ? 0 : bytes - 1));
  if (wanted >= smallest_class + classes) {
    throw_error(errc::out_of_memory, fmt::format("cannot allocate {} bytes of host memory for a copy", bytes));
  }
  return wanted < smallest_class ? 0 : wanted - smallest_class;
}

}  // namespace

namespace {

std::size_t pinned_size_of(std::size_t size_class) { return std::size_t{1} << (size_class + smallest_class); }

// With the pool's mutex held: blocks that devices have done with become free.
void collect_pinned(pinned_pool& pool, std::size_t size_class) {
  std::vector<void*>& free = pool.free.at(size_class);
  std::vector<waiting_block>& waiting = pool.waiting.at(size_class);
  for (std::size_t i = waiting.size(); i-- != 0;) {
    try {
      if (!waiting[i].last_use.done()) continue;
      free.push_back(waiting[i].memory);
    } catch (const error& problem) {  // the device has failed, and may still write to the block
      pool.lost.fetch_add(1);
      log(log_level::info, fmt::format("a block of host memory for copies is leaked: {}", problem.what()));
    }
    std::swap(waiting[i], waiting.back());
    waiting.pop_back();
  }
}

// With the pool's mutex held: a free block of the class, or half of a larger one; null if there is none. To ask the driver for
// more would wait for all devices.
void* take_pinned(pinned_pool& pool, std::size_t size_class) {
  collect_pinned(pool, size_class);
  std::size_t from = size_class;
  while (from != classes && pool.free.at(from).empty()) ++from;
  if (from == classes) return nullptr;
  for (std::size_t smaller = size_class; smaller != from; ++smaller)
    pool.free.at(smaller).reserve(pool.free.at(smaller).size() + 1);
  auto* const memory = static_cast<std::byte*>(pool.free.at(from).back());
  pool.free.at(from).pop_back();
  while (from != size_class) {
    --from;
    pool.free.at(from).push_back(memory + pinned_size_of(from));
  }
  return memory;
}

}  // namespace

pinned_block::pinned_block(device where, std::size_t bytes) : where_(where), size_class_(pinned_class_of(bytes)) {
  pinned_pool& pool = pinned_pool_of(where);
  {
    const std::lock_guard lock(pool.mutex);
    memory_ = take_pinned(pool, size_class_);
  }
  if (!memory_) {
    const std::size_t size = pinned_size_of(size_class_);
    memory_ = operations_of(where.kind).allocate_staging(where, size);
    pool.reserved_bytes.fetch_add(size);
  }
  pool.in_use.fetch_add(1);
}

void add_pinned_memory(device where, std::size_t bytes) {
  const std::size_t size_class = pinned_class_of(bytes);
  const std::size_t size = pinned_size_of(size_class);
  pinned_pool& pool = pinned_pool_of(where);
  const auto& operations = operations_of(where.kind);
  void* const memory = operations.allocate_staging(where, size);
  try {
    const std::lock_guard lock(pool.mutex);
    pool.free.at(size_class).push_back(memory);
  } catch (...) {
    operations.deallocate_staging(where, memory, size);
    throw;
  }
  pool.reserved_bytes.fetch_add(size);
}

pinned_block::~pinned_block() {
  pinned_pool& pool = pinned_pool_of(where_);
  pool.in_use.fetch_sub(1);
  if (copy_pending_) {
    pool.lost.fetch_add(1);
    log(log_level::info, "a block of host memory for copies is leaked: its device has failed");
    return;
  }
  try {
    const std::lock_guard lock(pool.mutex);
    pool.waiting.at(size_class_).push_back({memory_, std::move(last_use_)});
  } catch (const std::bad_alloc&) {
    pool.lost.fetch_add(1);
    log(log_level::info, "a block of host memory for copies is leaked: no memory to record it");
  }
}

void pinned_block::release_after(const stream& on) {
  last_use_.record(on);
  copy_pending_ = false;
}

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

staging_memory_stats get_staging_memory_stats(device_kind kind) {
  detail::pinned_pool& pool = detail::pinned_pool_of({kind, 0});
  staging_memory_stats stats;
  {
    const std::lock_guard lock(pool.mutex);
    for (const auto& size : pool.waiting) {
      stats.blocks_awaited += static_cast<std::uint64_t>(std::count_if(
          size.begin(), size.end(), [](const detail::waiting_block& each) { return !each.last_use.done(); }));
    }
  }
  stats.blocks_in_use = pool.in_use.load();
  stats.blocks_lost = pool.lost.load();
  stats.reserved_bytes = pool.reserved_bytes.load();
  return stats;
}

}  // namespace ferry::inline v0

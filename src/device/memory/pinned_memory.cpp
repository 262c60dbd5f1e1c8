#include "pinned_memory.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/memory.hpp>
#include <ferry/device/traits.hpp>

#include "completion_lanes.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t smallest_class = std::countr_zero(pinned_block::smallest_size);
constexpr std::size_t classes = 48;

constexpr std::size_t usual_budget = std::size_t{256} << 20;

struct waiting_block {
  void* memory = nullptr;
  std::size_t size_class = 0;
};

// Memory page-locked for one CUDA device is so for all. Never destroyed, like the devices' own state.
struct pinned_pool {
  std::mutex mutex;
  std::array<std::vector<void*>, classes> free;
  completion_lanes<waiting_block> waiting;
  std::atomic<std::uint64_t> in_use{0};
  std::atomic<std::uint64_t> used_bytes{0};  // of blocks in use or awaited
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

std::size_t pinned_size_of(std::size_t size_class) { return std::size_t{1} << (size_class + smallest_class); }

std::size_t budget_of_environment() {
  const char* const text = std::getenv("FERRY_PINNED_MEMORY");
  const unsigned long long mebibytes = text ? std::strtoull(text, nullptr, 10) : 0;
  return mebibytes == 0 ? usual_budget : static_cast<std::size_t>(mebibytes) << 20;
}

std::atomic<std::size_t>& pinned_budget() {
  static std::atomic<std::size_t> bytes{budget_of_environment()};
  return bytes;
}

// With the pool's mutex held: blocks that devices have done with become free.
void collect_pinned(pinned_pool& pool) {
  pool.waiting.collect([&](const waiting_block& each, const std::exception_ptr& failure) {
    pool.used_bytes.fetch_sub(pinned_size_of(each.size_class));
    if (!failure) return pool.free.at(each.size_class).push_back(each.memory);
    pool.lost.fetch_add(1);  // the device may still write to it
    log(log_level::info, "a block of host memory for copies is leaked: its device has failed");
  });
}

// With the pool's mutex held: a free block of the class, or half of a larger one; null if there is none. To ask the driver for
// more would wait for all devices.
void* take_pinned(pinned_pool& pool, std::size_t size_class) {
  collect_pinned(pool);
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

bool exceeds_budget(const pinned_pool& pool, std::size_t size_class) {
  return pool.used_bytes.load() + pinned_size_of(size_class) > pinned_budget().load();
}

}  // namespace

pinned_block::pinned_block(device where, std::size_t bytes) : where_(where), size_class_(pinned_class_of(bytes)) {
  pinned_pool& pool = pinned_pool_of(where);
  const std::size_t size = pinned_size_of(size_class_);
  {
    const std::lock_guard lock(pool.mutex);
    memory_ = take_pinned(pool, size_class_);
  }
  if (!memory_) {
    memory_ = operations_of(where.kind).allocate_staging(where, size);
    pool.reserved_bytes.fetch_add(size);
  }
  pool.in_use.fetch_add(1);
  pool.used_bytes.fetch_add(size);
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
  const std::size_t size = pinned_size_of(size_class_);
  pool.in_use.fetch_sub(1);
  try {
    const std::lock_guard lock(pool.mutex);
    if (!copy_pending_) {
      if (last_on_.device().is_cpu()) {
        pool.free.at(size_class_).push_back(memory_);
        pool.used_bytes.fetch_sub(size);
      } else {
        pool.waiting.add(last_on_, std::move(last_use_), {memory_, size_class_});
      }
      return;
    }
  } catch (const std::bad_alloc&) {
    log(log_level::info, "a block of host memory for copies is leaked: no memory to record it");
    pool.lost.fetch_add(1);
    pool.used_bytes.fetch_sub(size);
    return;
  }
  pool.lost.fetch_add(1);
  pool.used_bytes.fetch_sub(size);
  log(log_level::info, "a block of host memory for copies is leaked: its device has failed");
}

void set_pinned_memory_budget(std::size_t bytes) noexcept { pinned_budget().store(bytes); }

bool pinned_memory_is_short(device where, std::size_t bytes) {
  pinned_pool& pool = pinned_pool_of(where);
  const std::size_t size_class = pinned_class_of(bytes);
  if (!exceeds_budget(pool, size_class)) return false;
  const std::lock_guard lock(pool.mutex);
  collect_pinned(pool);
  return exceeds_budget(pool, size_class);
}

bool wait_for_pinned_memory(device where, std::size_t bytes) {
  constexpr std::chrono::seconds limit{30};
  constexpr std::chrono::microseconds pause{50};
  pinned_pool& pool = pinned_pool_of(where);
  const auto until = std::chrono::steady_clock::now() + limit;
  while (pinned_memory_is_short(where, bytes)) {
    {
      const std::lock_guard lock(pool.mutex);
      if (pool.waiting.size() == 0) return false;
    }
    if (std::chrono::steady_clock::now() > until) {
      throw_error(
          errc::device_timeout,
          fmt::format(
              "{} of page-locked memory are in copies that made no progress for {} s; a copy of {} bytes from or to "
              "{} has no room",
              pool.used_bytes.load(), limit.count(), bytes, to_string(where)));
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

void pinned_block::release_after(const stream& on) {
  last_use_.record(on);
  last_on_ = on;
  copy_pending_ = false;
}

}  // namespace ferry::inline v0::detail

namespace ferry::inline v0 {

staging_memory_stats get_staging_memory_stats(device_kind kind) {
  detail::pinned_pool& pool = detail::pinned_pool_of({kind, 0});
  staging_memory_stats stats;
  {
    const std::lock_guard lock(pool.mutex);
    detail::collect_pinned(pool);
    stats.blocks_awaited = pool.waiting.size();
  }
  stats.blocks_in_use = pool.in_use.load();
  stats.blocks_lost = pool.lost.load();
  stats.reserved_bytes = pool.reserved_bytes.load();
  return stats;
}

}  // namespace ferry::inline v0

#include <ferry/device/memory.hpp>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>

#include "../capture.hpp"
#include "../device_state.hpp"
#include "../lazy_streams.hpp"
#include "../parked_blocks.hpp"
#include "release_order.hpp"

namespace ferry::inline v0 {

constinit thread_local bool detail::release_in_current_order::active = false;

namespace detail {
namespace {

void lose(device where, std::size_t bytes, const char* why) noexcept {
  try {
    tell_leak(state_of(where), bytes, why);
  } catch (const std::exception& problem) {  // the device existed when the block was made
    log(log_level::info, problem.what());
  }
}

}  // namespace
}  // namespace detail

// The other streams that use the block.
struct device_memory::users {
  std::mutex mutex;
  std::vector<ferry::stream> streams;
};

device_memory::device_memory() noexcept = default;

device_memory::device_memory(const ferry::stream& on, std::size_t bytes) : made_on_(on), size_(bytes) {
  detail::device_state& state = detail::state_of(on.device());
  if (!state.operations->immediate) users_ = std::make_unique<users>();
  if (bytes == 0) return;
  if (!state.operations->immediate) detail::refuse_capture(on, "allocate memory");
  data_ = state.parked.allocate(state, on, bytes);
  state.blocks.fetch_add(1, std::memory_order_relaxed);
  state.total_allocations.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t used = state.used_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  std::uint64_t peak = state.peak_used_bytes.load(std::memory_order_relaxed);
  while (peak < used && !state.peak_used_bytes.compare_exchange_weak(peak, used, std::memory_order_relaxed)) {
  }
}

device_memory::device_memory(device_memory&& other) noexcept
    : made_on_(other.made_on_),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      users_(std::move(other.users_)) {}

device_memory& device_memory::operator=(device_memory&& other) noexcept {
  device_memory old(std::move(other));
  std::swap(made_on_, old.made_on_);
  std::swap(data_, old.data_);
  std::swap(size_, old.size_);
  std::swap(users_, old.users_);
  return *this;
}

device_memory::~device_memory() {
  if (!data_) return;
  try {
    detail::device_state& state = detail::state_of(device());
    state.blocks.fetch_sub(1, std::memory_order_relaxed);
    state.used_bytes.fetch_sub(size_, std::memory_order_relaxed);
    if (!users_) {
      state.operations->deallocate(device(), data_, size_, made_on_.handle());
      return;
    }
    if (detail::release_in_current_order::active) {
      if (const auto current = detail::known_current_stream(device())) record_use(*current);
    }
    detail::parked_blocks::block block{data_, size_, {}, {}};
    const auto mark = [&](const ferry::stream& user) {
      if (user.capturing()) {
        block.captured.push_back(user);
      } else if (!state.operations->stream_done(user.device(), user.handle())) {
        block.marks.push_back(user.record());
      }
    };
    for (const ferry::stream& user : users_->streams) mark(user);
    if (block.marks.empty() && block.captured.empty() && !made_on_.capturing()) {
      state.operations->deallocate(device(), data_, size_, made_on_.handle());
    } else {
      mark(made_on_);
      state.parked.park(state, std::move(block));
    }
    state.parked.reclaim_some(state);
  } catch (const std::exception& problem) {
    // Leaked rather than reused while a stream may still write to it. A failed device stays failed, and an unloaded
    // driver (after main) has released the memory.
    detail::lose(device(), size_, problem.what());
  }
}

void device_memory::record_use(const ferry::stream& by) {
  if (!users_ || by == made_on_ || by.device().kind != device().kind) return;
  const std::lock_guard lock(users_->mutex);
  if (std::find(users_->streams.begin(), users_->streams.end(), by) == users_->streams.end()) {
    users_->streams.push_back(by);
  }
}

device_memory_stats get_device_memory_stats(device where) {
  detail::device_state& state = detail::state_of(where);
  device_memory_stats stats;
  stats.blocks = state.blocks.load(std::memory_order_relaxed);
  stats.used_bytes = state.used_bytes.load(std::memory_order_relaxed);
  stats.peak_used_bytes = state.peak_used_bytes.load(std::memory_order_relaxed);
  stats.total_allocations = state.total_allocations.load(std::memory_order_relaxed);
  state.parked.reclaim_all(state);
  stats.parked_blocks = state.parked.blocks();
  stats.parked_bytes = state.parked.bytes();
  stats.memory_waits = state.parked.waits();
  stats.reserved_bytes = state.operations->reserved_bytes(where);
  return stats;
}

void device_memory_trim(device where) {
  detail::device_state& state = detail::state_of(where);
  state.parked.reclaim_at_once(state);
  state.operations->trim(where);
}

}  // namespace ferry::inline v0

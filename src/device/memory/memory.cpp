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

#include "../device_state.hpp"
#include "release_order.hpp"

namespace ferry::inline v0 {

constinit thread_local bool detail::release_in_current_order::active = false;

// The other streams that use the block.
struct device_memory::users {
  std::mutex mutex;
  std::vector<ferry::stream> streams;
};

namespace detail {
namespace {

// The stream on which a block used by several streams is freed: a separate stream waits for all of them, so that none
// of them has to wait for another. Under the state's lock.
stream reclaim_stream(detail::device_state& state) {
  const std::lock_guard lock(state.mutex);
  if (!state.reclaim_stream) state.reclaim_stream = state.operations->create_stream(state.where);
  return detail::stream_of(state.where, state.reclaim_stream);
}

}  // namespace
}  // namespace detail

device_memory::device_memory() noexcept = default;

device_memory::device_memory(const ferry::stream& on, std::size_t bytes) : made_on_(on), size_(bytes) {
  detail::device_state& state = detail::state_of(on.device());
  if (!state.operations->immediate) users_ = std::make_unique<users>();
  if (bytes == 0) return;
  data_ = state.operations->allocate(on.device(), bytes, on.handle());
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
    void* last = made_on_.handle();
    if (users_ && detail::release_in_current_order::active) record_use(current_stream(device()));
    if (users_ && !users_->streams.empty()) {
      const ferry::stream reclaim = detail::reclaim_stream(state);
      reclaim.wait(made_on_);
      for (const ferry::stream& user : users_->streams) reclaim.wait(user);
      last = reclaim.handle();
    }
    state.operations->deallocate(device(), data_, size_, last);
  } catch (const std::exception& problem) {
    // Leaked rather than reused while a stream may still write to it. A failed device stays failed, and an unloaded
    // driver (after main) has released the memory.
    log(log_level::info, fmt::format("{} bytes of {} are leaked: {}", size_, to_string(device()), problem.what()));
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
  const detail::device_state& state = detail::state_of(where);
  device_memory_stats stats;
  stats.blocks = state.blocks.load(std::memory_order_relaxed);
  stats.used_bytes = state.used_bytes.load(std::memory_order_relaxed);
  stats.peak_used_bytes = state.peak_used_bytes.load(std::memory_order_relaxed);
  stats.total_allocations = state.total_allocations.load(std::memory_order_relaxed);
  stats.reserved_bytes = state.operations->reserved_bytes(where);
  return stats;
}

void device_memory_trim(device where) { detail::state_of(where).operations->trim(where); }

}  // namespace ferry::inline v0

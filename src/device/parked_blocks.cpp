#include "parked_blocks.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/time.hpp>

#include "device_state.hpp"
#include "stream_use.hpp"

namespace ferry::inline v0::detail {
namespace {

// An allocation that would fail waits for so long at most: the streams may wait for what this very thread does next.
constexpr std::chrono::seconds longest_memory_wait{5};
constexpr std::chrono::microseconds first_memory_pause{20};
constexpr std::chrono::microseconds longest_memory_pause{2000};

// How many blocks one allocation, or one block given up, looks at.
constexpr std::size_t looks_at_once = 8;

// False: the device has failed, which has been said, or the driver is gone at the end of the process, which needs no word.
bool answers(const device_state& state) noexcept {
  try {
    (void)state.operations->capturing(state.where, state.operations->default_stream(state.where));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void tell_leak(device_state& state, std::size_t bytes, const char* why) noexcept {
  const bool first = !state.loss_told.exchange(true);
  const log_level level = !first ? log_level::debug : answers(state) ? log_level::warning : log_level::info;
  if (!log_enabled(level)) return;
  try {
    log(level, fmt::format("{} bytes of {} are leaked rather than used again early{}: {}", bytes,
                           to_string(state.where), first ? ", and more may be without another word" : "", why));
  } catch (const std::exception&) {
    log(level, "memory of a device is leaked rather than used again early");
  }
}

void parked_blocks::warm_up(device_state& state) {
  const std::lock_guard lock(mutex_);
  if (!freeing_on_) freeing_on_ = state.operations->create_stream(state.where);
}

void parked_blocks::park(device_state& state, block&& given_up) {
  const std::lock_guard lock(mutex_);
  if (!freeing_on_) freeing_on_ = state.operations->create_stream(state.where);
  const std::size_t bytes = given_up.bytes;
  all_.push_back(std::move(given_up));
  blocks_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
}

// With mutex_ held.
parked_blocks::outcome parked_blocks::look_at(device_state& state, block& one) noexcept {
  try {
    while (!one.captured.empty()) {
      if (one.captured.back().capturing()) return outcome::in_use;
      one.marks.push_back(one.captured.back().record());
      one.captured.pop_back();
    }
    while (!one.marks.empty()) {
      if (!one.marks.back().done()) return outcome::in_use;
      one.marks.pop_back();
    }
  } catch (const std::exception& problem) {
    tell_leak(state, one.bytes, problem.what());
    return outcome::lost;
  }
  state.operations->deallocate(state.where, one.memory, one.bytes, freeing_on_);
  return outcome::freed;
}

// With mutex_ held.
void parked_blocks::reclaim(device_state& state, std::size_t most) noexcept {
  for (std::size_t looks = std::min(most, all_.size()); looks != 0; --looks) {
    if (next_ >= all_.size()) next_ = 0;
    const outcome result = look_at(state, all_[next_]);
    if (result == outcome::in_use) {
      ++next_;
      continue;
    }
    if (result == outcome::freed) frees_.fetch_add(1, std::memory_order_relaxed);
    blocks_.fetch_sub(1, std::memory_order_relaxed);
    bytes_.fetch_sub(all_[next_].bytes, std::memory_order_relaxed);
    if (next_ + 1 != all_.size()) std::swap(all_[next_], all_.back());
    all_.pop_back();
  }
}

void parked_blocks::reclaim_some(device_state& state) noexcept {
  if (blocks() == 0) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);  // another thread is at it already
  if (lock) reclaim(state, looks_at_once);
}

void parked_blocks::reclaim_all(device_state& state) noexcept {
  if (blocks() == 0) return;
  const std::lock_guard lock(mutex_);
  reclaim(state, std::numeric_limits<std::size_t>::max());
}

void parked_blocks::reclaim_at_once(device_state& state) noexcept {
  reclaim_all(state);
  void* freeing = nullptr;
  {
    const std::lock_guard lock(mutex_);
    freeing = freeing_on_;
  }
  if (freeing) {
    try {
      stream_of(state.where, freeing).synchronize();  // it has nothing to do but to free what is done
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next use of the device says so
    }
  }
  synchronize_idle_streams(state);
}

// The stream on which blocks are freed has never anything left to do, so this holds no stream up.
void parked_blocks::follow_frees(const stream& on) {
  if (frees_.load(std::memory_order_relaxed) == 0) return;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // it costs memory or time, but nothing is wrong then
  const std::uint64_t frees = frees_.load(std::memory_order_relaxed);
  const std::uint64_t spread = reinterpret_cast<std::uintptr_t>(on.handle()) * std::uint64_t{0x9e3779b97f4a7c15};
  follower& place = followers_[(spread >> 32) % followers_.size()];
  if (place.stream == on.handle() && place.frees == frees) return;
  if (freed_marks_ != frees) {
    freed_.record(stream_of(on.device(), freeing_on_));
    freed_marks_ = frees;
  }
  on.wait(freed_);
  place = {on.handle(), frees};
}

void* parked_blocks::allocate(device_state& state, const stream& on, std::size_t bytes) {
  reclaim_some(state);
  follow_frees(on);
  try {
    return state.operations->allocate(state.where, bytes, on.handle());
  } catch (const error& problem) {
    if (problem.kind() != errc::out_of_memory) throw;
  }
  return allocate_when_freed(state, on, bytes);
}

void* parked_blocks::allocate_when_freed(device_state& state, const stream& on, std::size_t bytes) {
  const auto until = deadline::after(longest_memory_wait);
  auto pause = first_memory_pause;
  bool counted = false;
  for (std::optional<std::uint64_t> tried_after;;) {
    const bool last = until.expired();
    reclaim_all(state);
    // Also what other threads have freed.
    if (const std::uint64_t freed = frees_.load(std::memory_order_relaxed); freed != tried_after || last) {
      tried_after = freed;
      reclaim_at_once(state);
      try {
        return state.operations->allocate(state.where, bytes, on.handle());
      } catch (const error& problem) {
        if (problem.kind() != errc::out_of_memory || blocks() == 0) throw;
        if (last) {
          throw_error(errc::out_of_memory,
                      fmt::format("{}; {} bytes more were given up, but streams have used them for {} s",
                                  problem.message(), this->bytes(), longest_memory_wait.count()));
        }
      }
      pause = first_memory_pause;
    }
    if (!std::exchange(counted, true)) waits_.fetch_add(1, std::memory_order_relaxed);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, longest_memory_pause);
  }
}

}  // namespace ferry::inline v0::detail

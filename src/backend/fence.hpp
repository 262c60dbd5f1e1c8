#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>

#include <ferry/base/error.hpp>

#include "lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// Whether the group has declared this worker dead. Thread-safe.
class fence {
 public:
  [[nodiscard]] bool is_up() const noexcept { return up_.load(std::memory_order_acquire); }
  /// Once it is up; does not change any more.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }
  /// Throws errc::fenced if it is up.
  void check() const {
    if (is_up()) throw_error(errc::fenced, reason_);
  }
  /// False if it was up already.
  bool raise(std::string reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (up_.load(std::memory_order_relaxed)) return false;
    reason_ = std::move(reason);
    up_.store(true, std::memory_order_release);
    return true;
  }

 private:
  ranked_mutex mutex_{rank_of_fence};
  std::string reason_;  // set before up_
  std::atomic<bool> up_{false};
};

}  // namespace ferry::inline v0::detail

#pragma once

// Reports the completion of device work without a waiting thread.

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <ferry/base/work.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/transport/reactor.hpp>

#include "completion_poller.hpp"

namespace ferry::inline v0::detail {

/// Waits, without occupying a thread, until the work queued on some streams has completed. Thread-safe.
class pending_copy final : public std::enable_shared_from_this<pending_copy>, public mark_waiter {
 public:
  /// Called on a thread of the reactor, once: with null when all work has completed, else with the device's failure.
  using callback = std::function<void(std::exception_ptr failure)>;
  /// Never throws: a stream that cannot be watched counts as failed. Until the end, `on_wait` is called every 50 ms, on
  /// a thread of the reactor; it may still be running, or begin once more, when `on_done` is called.
  static void watch(std::shared_ptr<reactor> threads, const std::vector<stream>& streams, callback on_done,
                    std::function<void()> on_wait = {}) noexcept;

  /// For watch().
  explicit pending_copy(std::shared_ptr<reactor> threads) : threads_(std::move(threads)) {}

 private:
  struct task : work {
    std::shared_ptr<pending_copy> self;
  };
  void reached(std::exception_ptr failure) noexcept override;
  void begin(const std::vector<stream>& streams);
  void start_timer();
  void look() noexcept;
  void finish(std::exception_ptr failure) noexcept;

  const std::shared_ptr<reactor> threads_;
  callback on_done_;
  std::function<void()> on_wait_;
  std::atomic<std::size_t> missing_{0};
  task arrival_;                // posted by the poller
  std::exception_ptr failure_;  // written before arrival_ is posted
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  task tick_;
  timer_id timer_ = timer_id::none;
  bool finished_ = false;
};

}  // namespace ferry::inline v0::detail

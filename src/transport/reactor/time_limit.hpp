#pragma once

// A function that is called unless its reason is gone by a deadline.

#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// Calls a function, which must not throw, on a thread of the reactor at the deadline, unless it is destroyed before. The function may
/// still run, or begin, while the destructor does: it refers weakly to what it is about.
class time_limit {
 public:
  /// Throws what start_timer() throws.
  time_limit(std::shared_ptr<reactor> timers, deadline until, std::function<void()> late)
      : timers_(std::move(timers)), item_(new item) {
    item_->late = std::move(late);
    item_->run = [](work* self) noexcept {
      const std::unique_ptr<item> owned(static_cast<item*>(self));
      owned->late();
    };
    try {
      id_ = timers_->start_timer(until, item_);
    } catch (...) {
      delete item_;
      throw;
    }
  }
  ~time_limit() {
    if (timers_->cancel_timer(id_)) delete item_;
  }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;

 private:
  struct item : work {
    std::function<void()> late;
  };
  const std::shared_ptr<reactor> timers_;
  item* const item_;  // the timer owns it from when it fires
  timer_id id_ = timer_id::none;
};

/// One time_limit after the other, started by any thread: the last that was started is the one that is called. Thread-safe.
class renewed_time_limit {
 public:
  /// Takes the place of the one before; does nothing after close(). Throws what start_timer() throws.
  void start(std::shared_ptr<reactor> timers, deadline until, std::function<void()> late) {
    std::unique_ptr<time_limit> before;  // destroyed without the lock
    // Held while the timer starts, too: it may be over, and its function start the next one, before this one is kept.
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    auto next = std::make_unique<time_limit>(std::move(timers), until, std::move(late));
    before = std::exchange(current_, std::move(next));
  }
  void close() noexcept {
    std::unique_ptr<time_limit> before;
    const std::lock_guard lock(mutex_);
    closed_ = true;
    before = std::move(current_);
  }

 private:
  std::mutex mutex_;  // guards the rest
  bool closed_ = false;
  std::unique_ptr<time_limit> current_;
};

}  // namespace ferry::inline v0::detail

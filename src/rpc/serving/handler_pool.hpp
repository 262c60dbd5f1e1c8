#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// Bounds how many handlers of one worker run at once on the shared reactor threads. A handler that waits in ferry gives
/// its place to the next one and takes a place again, before newcomers, when its wait is over.
class handler_pool final : public blocking_observer, public std::enable_shared_from_this<handler_pool> {
 public:
  /// `idle_changed(argument)` is called whenever busy() may have become false. Throws std::bad_alloc.
  handler_pool(std::shared_ptr<reactor> threads, int limit, int max_blocked, void (*idle_changed)(void*) noexcept,
               void* argument);
  ~handler_pool();
  handler_pool(const handler_pool&) = delete;
  handler_pool& operator=(const handler_pool&) = delete;

  /// Runs `item` on a handler thread, at once or when a place is free. Without memory for another runner the item waits
  /// for a running one.
  void submit(work* item) noexcept;
  /// Running handlers, without those that wait.
  [[nodiscard]] int running() const noexcept;
  /// Handlers blocked in a wait of ferry.
  [[nodiscard]] int blocked() const noexcept;
  /// Whether any item runs, waits or is queued.
  [[nodiscard]] bool busy() const noexcept;
  /// Waits until not busy(); false if the deadline passed.
  bool wait_idle(deadline until) noexcept;
  /// Stops calls of idle_changed.
  void forget_owner() noexcept;

  /// Whether the item running on this thread had to wait for its place.
  [[nodiscard]] static bool runs_what_was_queued() noexcept;

  /// Throws errc::resource_exhausted if too many wait already, std::bad_alloc.
  void before_blocking() override;
  void after_blocking() noexcept override;

 private:
  struct runner : work {
    runner() noexcept { run = &handler_pool::run; }
    std::shared_ptr<handler_pool> pool;  // while it runs
    work* item = nullptr;
    bool queued = false;
    runner* next_free = nullptr;
  };
  struct returning {
    bool admitted = false;
    returning* next = nullptr;
  };

  static void run(work* self) noexcept;
  void launch(runner* free, work* item, bool elsewhere) noexcept;
  bool have_free_runner() noexcept;
  runner* take_place() noexcept;
  void free_runner(runner* done) noexcept;
  work* take_backlog() noexcept;
  bool admit_returning() noexcept;
  work* next_item(runner* done) noexcept;

  const std::shared_ptr<reactor> threads_;
  const int limit_;
  const int max_blocked_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable admitted_;
  std::condition_variable idle_;
  void (*idle_changed_)(void*) noexcept;
  void* argument_;
  int running_ = 0;
  int blocked_ = 0;
  work* backlog_head_ = nullptr;
  work* backlog_tail_ = nullptr;
  returning* returning_head_ = nullptr;
  returning* returning_tail_ = nullptr;
  // While no runner runs, one is free: submitted work always has a thread that runs it, or one to wait for.
  runner* free_runners_ = nullptr;
};

}  // namespace ferry::inline v0::detail

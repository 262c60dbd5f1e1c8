#pragma once

// The threads of a process: every library thread that moves bytes or runs handlers is one of these.
//
// All of them wait in one epoll. A thread that receives an event reads the available data, collects the resulting work
// in a batch of its own, runs the batch and returns to the epoll. Before it runs foreign code it ensures that another
// thread is polling, so a handler that computes or blocks does not delay other connections. The kernel wakes the thread
// that went to sleep last, so a series of small calls stays on one warm thread without a thread switch.
//
// The monitor thread takes over what a thread defers: corked writes after a tick, further work of a batch when the
// thread has made no progress for a tick, a connection that the thread reads itself when the thread has not touched it
// for a while. It looks once a tick only while a thread holds something, less often while it finds nothing to do, and at what
// can wait for longer all at once: with more processes than processors, each look takes a processor from a thread that has
// work.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ferry/transport/reactor.hpp>

#include "thread_batch.hpp"

namespace ferry::inline v0::detail {

class io_threads;

/// A connection whose thread may wait for the next message itself: a descriptor_handler that reads its descriptor, or
/// what was given to linger_on().
class lingering_connection : public deferred_io {
 public:
  /// Called by a thread of `on` after a batch caused by this connection alone: may wait a few milliseconds; true if
  /// another message arrived and its work is in the batch.
  virtual bool linger(io_threads& on) noexcept = 0;
};

class io_threads final : public reactor {
 public:
  static constexpr std::chrono::milliseconds tick{1};
  static constexpr int max_private_waits = 2;

  /// Use shared_reactor().
  io_threads();
  ~io_threads() override;
  io_threads(const io_threads&) = delete;
  io_threads& operator=(const io_threads&) = delete;

  void post(work* item) noexcept override;
  watch_id watch(int descriptor, std::shared_ptr<descriptor_handler> handler, bool readable, bool writable) override;
  void rewatch(watch_id watch, bool readable, bool writable) noexcept override;
  void unwatch(watch_id watch) noexcept override;
  timer_id start_timer(deadline at, work* item) override;
  bool cancel_timer(timer_id timer) noexcept override;

  void post_elsewhere(work* item) noexcept override;
  bool flush_later(const std::shared_ptr<deferred_io>& item) noexcept override;
  [[nodiscard]] bool has_more_work() const noexcept override;
  [[nodiscard]] bool reads_next(const descriptor_handler& which) const noexcept override;
  void watch_later(std::shared_ptr<deferred_io> item, std::chrono::milliseconds interval) noexcept override;
  void begin_blocking() noexcept override;
  void end_blocking() noexcept override;

  /// Ensures that a thread waits for events while the current one does something else.
  void ensure_poller() noexcept;

  /// Called from an item of work: true if the current thread calls of->linger() once it has run its batch, or, if it
  /// cannot, of->resume_watching(true).
  bool linger_on(const std::shared_ptr<lingering_connection>& of) noexcept;

  /// Bounds how many threads sleep on a single descriptor instead of in the epoll: true if the current one may. Every
  /// true result must be followed by end_private_wait().
  [[nodiscard]] bool begin_private_wait() noexcept {
    if (private_waits_.fetch_add(1, std::memory_order_relaxed) < max_private_waits) return true;
    end_private_wait();
    return false;
  }
  void end_private_wait() noexcept { private_waits_.fetch_sub(1, std::memory_order_relaxed); }

  /// For a thread that spins on one connection without end: true if there are fewer than `most` in the process. Every true result must
  /// be followed by end_busy_wait(), soon if another connection than those has had a message since (busy_waits_refused()).
  [[nodiscard]] bool begin_busy_wait(int most) noexcept {
    if (busy_waits_.fetch_add(1, std::memory_order_relaxed) < most) return true;
    end_busy_wait();
    busy_waits_refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  [[nodiscard]] int busy_waits() const noexcept { return busy_waits_.load(std::memory_order_relaxed); }
  void end_busy_wait() noexcept { busy_waits_.fetch_sub(1, std::memory_order_relaxed); }
  [[nodiscard]] std::uint32_t busy_waits_refused() const noexcept {
    return busy_waits_refused_.load(std::memory_order_relaxed);
  }
  /// The threads end.
  [[nodiscard]] bool is_stopping() const noexcept { return stopping_.load(std::memory_order_relaxed); }

  /// How many events of descriptors there have been; wraps.
  [[nodiscard]] std::uint32_t events() const noexcept { return events_.load(std::memory_order_relaxed); }

  [[nodiscard]] std::size_t thread_count() const noexcept { return threads_.load(std::memory_order_relaxed); }

 private:
  friend std::shared_ptr<reactor> ferry::shared_reactor();
  struct thread_state;
  struct registration {
    std::shared_ptr<descriptor_handler> handler;
    int descriptor = -1;
    std::uint32_t generation = 0;
  };
  struct timer {
    timer_id id;
    work* item;
  };
  struct later_watch {
    std::shared_ptr<deferred_io> item;
    std::chrono::milliseconds interval;
    clock::time_point due;
  };

  [[nodiscard]] std::shared_ptr<io_threads> self() { return std::static_pointer_cast<io_threads>(shared_from_this()); }
  /// The state of the current thread, if it is one of these.
  [[nodiscard]] thread_state* own_state() const noexcept;
  void start();
  void stop() noexcept;
  bool spawn() noexcept;
  void thread_main() noexcept;
  void finish_batch(thread_state& self) noexcept;
  void finish_and_linger(thread_state& self) noexcept;
  void run_batch(thread_state& self) noexcept;
  void run_item(thread_state& self, work* item) noexcept;
  void wake_one() noexcept;
  work* pop_global() noexcept;
  void push_global(const work_list& items) noexcept;
  std::shared_ptr<descriptor_handler> handler_of(std::uint64_t id) noexcept;

  // What an inspection of the threads found.
  struct finding {
    bool held = false;   // something is deferred
    bool taken = false;  // so much longer than it should be that the monitor has seen to it
  };
  void monitor_main() noexcept;
  void request_ticks() noexcept;
  finding inspect_threads() noexcept;
  void inspect_watches(clock::time_point now) noexcept;
  /// When the first of the watches is due; max() without any.
  clock::time_point first_watch() noexcept;

  int epoll_ = -1;
  int wake_event_ = -1;  // edge-triggered: one write wakes one thread
  int stop_event_ = -1;  // level-triggered: wakes all
  std::atomic<bool> stopping_{false};
  std::atomic<int> waiters_{0};
  std::atomic<int> spawning_{0};
  std::atomic<int> private_waits_{0};
  std::atomic<int> busy_waits_{0};
  std::atomic<std::uint32_t> busy_waits_refused_{0};
  std::atomic<bool> wake_pending_{false};
  std::atomic<std::uint32_t> events_{0};
  std::atomic<std::size_t> threads_{0};
  std::atomic<bool> warned_{false};

  std::mutex queue_mutex_;
  work_list queue_;
  std::atomic<std::size_t> queue_size_{0};

  std::mutex table_mutex_;
  std::vector<registration> table_;
  std::vector<std::uint32_t> free_registrations_;

  std::mutex threads_mutex_;  // guards states_ and decrements of threads_
  std::condition_variable threads_changed_;
  std::vector<thread_state*> states_;

  std::mutex monitor_mutex_;
  std::condition_variable monitor_wake_;
  std::multimap<clock::time_point, timer> timers_;
  std::map<std::uint64_t, clock::time_point> timer_index_;
  std::uint64_t next_timer_ = 1;
  bool monitor_stop_ = false;
  std::atomic<bool> ticking_{false};  // the monitor looks for what threads defer
  // Until when the monitor sleeps at most, as a count of the clock; 0 while it is awake, or about to be.
  std::atomic<clock::rep> sleeps_until_{0};
  std::mutex watches_mutex_;
  std::vector<later_watch> watches_;
  std::thread monitor_;
};

/// Throws errc::forked_process in a child forked from a process that had a reactor.
void check_not_forked();
/// The same check, for callers that must not throw.
[[nodiscard]] bool is_forked_child() noexcept;

}  // namespace ferry::inline v0::detail

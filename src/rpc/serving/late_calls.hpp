#pragma once

#include <atomic>
#include <mutex>

#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

class worker_core;

/// Gives up calls whose time limit passes after their handlers have returned futures: their callers may be unable to
/// cancel them (stopped processes). One timer for all of them. Thread-safe.
class late_calls {
 public:
  explicit late_calls(worker_core& worker) noexcept : worker_(worker) {}
  late_calls(const late_calls&) = delete;
  late_calls& operator=(const late_calls&) = delete;
  ~late_calls() { close(); }

  /// A call with this deadline answers later. Cheap, unless its deadline is the next one. If there is no memory for a
  /// timer, it logs that.
  void watch(deadline until) noexcept;
  /// Cancels the timer; no more calls are watched.
  void close() noexcept;

 private:
  struct look_item;
  // With mutex_ held.
  void set_timer(clock::time_point at);
  void look(const work* fired) noexcept;

  worker_core& worker_;
  std::atomic<clock::time_point> next_{clock::time_point::max()};  // when the timer fires; max: it is not set
  std::mutex mutex_;                                               // guards what follows
  timer_id timer_ = timer_id::none;
  look_item* item_ = nullptr;  // owned by the reactor
  bool closed_ = false;
};

}  // namespace ferry::inline v0::detail

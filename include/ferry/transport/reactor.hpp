#pragma once

// What ferry offers to a transport written outside it: readiness of descriptors, timers, and threads to run work on.

#include <cstdint>
#include <memory>

#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>

namespace ferry::inline v0 {

/// What a descriptor is ready for. `readable` is also set on hang-up and error: the next read returns which.
struct readiness {
  bool readable = false;
  bool writable = false;
  bool hung_up = false;  ///< the peer closed, or an error: read until the end of the stream is seen
};

/// Called when a watched descriptor is ready, on the reactor's threads, possibly on several at once: the events of one
/// descriptor are not serialised. Kept alive by the reactor until the watch has ended.
class descriptor_handler {
 public:
  virtual ~descriptor_handler() = default;
  /// Edge-triggered: read or write until it would block.
  virtual void on_ready(readiness ready) noexcept = 0;
};

/// Identifies one watch(); zero is none.
enum class watch_id : std::uint64_t { none = 0 };
/// Identifies one start_timer(); zero is none.
enum class timer_id : std::uint64_t { none = 0 };

/// The event loop of a process. All members are thread-safe.
class reactor : public executor {
 public:
  /// Starts watching `descriptor` (non-blocking, stays the caller's). Throws errc::system_failure.
  virtual watch_id watch(int descriptor, std::shared_ptr<descriptor_handler> handler, bool readable, bool writable) = 0;
  /// Changes the watched events; an event that is already pending is reported again.
  virtual void rewatch(watch_id watch, bool readable, bool writable) noexcept = 0;
  /// Ends a watch; call it before closing the descriptor. A call of on_ready may still be running when this returns.
  virtual void unwatch(watch_id watch) noexcept = 0;

  /// Runs `item` on a reactor thread once `at` has passed, unless cancelled first. Resolution: one millisecond.
  virtual timer_id start_timer(deadline at, work* item) = 0;
  /// True if the timer was stopped before its work began: then the caller owns the work again.
  virtual bool cancel_timer(timer_id timer) noexcept = 0;
};

/// The process's reactor, which all its workers share: for programs and tests that open transports themselves. Created,
/// with its threads, on first use and destroyed with its last owner. Throws errc::system_failure, errc::forked_process.
std::shared_ptr<reactor> shared_reactor();

}  // namespace ferry::inline v0

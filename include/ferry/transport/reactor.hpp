#pragma once

// What ferry offers to a transport written outside it: readiness of descriptors, timers, and threads to run work on.

#include <chrono>
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

/// A connection that defers output, or the watching of its descriptor while a thread reads that itself. Both functions
/// are thread-safe.
class deferred_io {
 public:
  virtual ~deferred_io() = default;
  /// Writes the deferred output.
  virtual void flush() noexcept = 0;
  /// Called in intervals, by one thread at a time: writes deferred output, and has the reactor watch the descriptor again
  /// if no thread has used it since the last call, or at once if `now`. True: it needs no further call.
  virtual bool resume_watching(bool now) noexcept = 0;
};

/// Identifies one watch(); zero is none.
enum class watch_id : std::uint64_t { none = 0 };
/// Identifies one start_timer(); zero is none.
enum class timer_id : std::uint64_t { none = 0 };

/// The event loop of a process, or of a backend or transport with threads of its own. Owned by a shared_ptr, which its
/// connections share. All members are thread-safe.
///
/// A reactor implements the first five functions and post(). The others let its threads defer and hand over work; their
/// defaults defer nothing, which is always correct. Handlers of calls run on its threads and may block: a reactor with a
/// fixed number of threads must have another one take over in begin_blocking(), or calls that handlers make to workers
/// on the same reactor may wait for each other.
class reactor : public executor, public std::enable_shared_from_this<reactor> {
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

  /// As post(), for work that must not wait for the current thread: another one may run it at once.
  virtual void post_elsewhere(work* item) noexcept { post(item); }
  /// Whether the current thread is one of this reactor and has more work to run, after which it flushes what
  /// flush_later() took: then a connection may collect output.
  [[nodiscard]] virtual bool has_more_work() const noexcept { return false; }
  /// Whether the current thread is one of this reactor and will itself read for this handler once it has run its work: then nothing need be
  /// watched for it before. If the thread blocks, the handler is watched again, as watch_later() says.
  [[nodiscard]] virtual bool reads_next(const descriptor_handler& which) const noexcept {
    (void)which;
    return false;
  }
  /// Calls output->flush() once the current thread has run its work, or soon. False: it does not, the caller writes.
  virtual bool flush_later(const std::shared_ptr<deferred_io>& output) noexcept {
    (void)output;
    return false;
  }
  /// Calls item->resume_watching(false) about every `interval`, at least a millisecond, until it returns true. Call it with
  /// no lock held.
  virtual void watch_later(std::shared_ptr<deferred_io> item, std::chrono::milliseconds interval) noexcept {
    (void)interval;
    while (!item->resume_watching(false)) {
    }
  }
  /// The current thread, which may be any, is about to block or to compute for long: if it is one of this reactor, it
  /// passes on everything it defers and ensures that another thread waits for events. Until end_blocking() nothing more is
  /// deferred on it. May be nested.
  virtual void begin_blocking() noexcept {}
  virtual void end_blocking() noexcept {}
};

/// The process's reactor, which all its workers share: for programs and tests that open transports themselves. Created,
/// with its threads, on first use and destroyed with its last owner. Throws errc::system_failure, errc::forked_process.
std::shared_ptr<reactor> shared_reactor();

}  // namespace ferry::inline v0

#pragma once

// The interface between work items and the threads that run them.

#include <atomic>
#include <memory>

namespace ferry::inline v0 {

/// A unit of work that belongs to an intrusive queue. Owned by the thread that queues it until run() is called, which
/// frees or reuses it. run() must not throw.
struct work {
  work* next = nullptr;
  void (*run)(work* self) noexcept = nullptr;
};

/// Threads that run work. Owned by shared_ptr: every object that may post later keeps it alive.
class executor {
 public:
  virtual ~executor() = default;
  /// Runs `item` soon on a handler thread, never on the stack of the caller. Thread-safe. After the executor has
  /// stopped the work still runs, on a thread of the library, so that nothing waits forever.
  virtual void post(work* item) noexcept = 0;
};

class stoppable;

namespace detail {
/// The work of stoppable::begin_stop().
struct stop_work : work {
  explicit stop_work(stoppable* stopped) noexcept : whom(stopped) {}
  stoppable* const whom;
};
}  // namespace detail

/// A running operation whose requester may cancel it. Reference-counted.
class stoppable {
 public:
  virtual void add_reference() noexcept = 0;
  virtual void drop_reference() noexcept = 0;
  /// Marks it as no longer wanted; runs no user code.
  virtual void mark_stopped() noexcept = 0;
  /// Marks it, and notifies the registered callbacks: may run user code.
  virtual void request_stop() noexcept = 0;

  /// Marks it, and returns work that calls request_stop(), for a thread that may run user code; holds a reference until
  /// then. Null if that was returned before. Allocates nothing: a call must stop also when memory is exhausted.
  [[nodiscard]] work* begin_stop() noexcept {
    if (stop_begun_.exchange(true)) return nullptr;
    mark_stopped();
    add_reference();
    stop_.run = [](work* self) noexcept {
      stoppable& stopped = *static_cast<detail::stop_work*>(self)->whom;
      stopped.request_stop();
      stopped.drop_reference();
    };
    return &stop_;
  }

 protected:
  stoppable() = default;
  ~stoppable() = default;
  stoppable(const stoppable&) = delete;
  stoppable& operator=(const stoppable&) = delete;

 private:
  detail::stop_work stop_{this};
  std::atomic<bool> stop_begun_{false};
};

/// Observes the blocking of a thread that runs handlers. One per thread, set by the thread itself.
class blocking_observer {
 public:
  virtual ~blocking_observer() = default;
  /// The current thread is about to block in a ferry wait. May throw errc::resource_exhausted: then it must not block.
  virtual void before_blocking() = 0;
  /// The wait is over. May itself wait until the handler may run again.
  virtual void after_blocking() noexcept = 0;
};

/// The current thread's observer; nullptr on threads that are not the library's. Returns the previous one.
blocking_observer* set_blocking_observer(blocking_observer* observer) noexcept;
[[nodiscard]] blocking_observer* get_blocking_observer() noexcept;

/// Wraps every wait of the library.
class blocking_scope {
 public:
  blocking_scope() : observer_(get_blocking_observer()) {
    if (observer_) observer_->before_blocking();
  }
  ~blocking_scope() {
    if (observer_) observer_->after_blocking();
  }
  blocking_scope(const blocking_scope&) = delete;
  blocking_scope& operator=(const blocking_scope&) = delete;

 private:
  blocking_observer* observer_;
};

}  // namespace ferry::inline v0

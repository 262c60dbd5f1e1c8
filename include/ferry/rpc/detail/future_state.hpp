#pragma once

// The shared state of a future and its promise: one object with a reference count, a status word that waiters sleep on,
// a list of continuations, and the value or the error. The state of a call derives from future_state<R>, so a call and
// its future need one allocation.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <ferry/base/detail/ref_ptr.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/detail/value_order.hpp>

namespace ferry::inline v0::detail {

/// The exception that `run` throws; null if none. The catch block has ended when the exception is published to another
/// thread: if a thread published it inside the catch block, ThreadSanitizer would report a race between the last
/// references of the two threads, because the reference count is in a library that is not instrumented.
template <class F>
[[nodiscard]] std::exception_ptr caught(F&& run) noexcept {
  try {
    std::forward<F>(run)();
  } catch (...) {
    return detail::current_error();
  }
  return nullptr;
}

/// Work to run once a state is complete. Embedded in its owner (a coroutine frame, a child state), which keeps it alive
/// until `invoke` is called. `invoke` is called exactly once, under context_scope(where), and may free the continuation.
struct continuation : work {
  void (*invoke)(continuation* self) noexcept = nullptr;
  /// The context and the context values with which it was attached. invoke runs on the executor of the context, if it
  /// has one; otherwise, or if the context is empty, on the thread that completes or attaches.
  captured_context where;
};

/// Runs `item` on the executor of its context, else on this thread: nested up to a bounded depth, beyond that queued
/// behind the running continuations. A thread that is about to sleep in a wait runs the queued ones first.
void dispatch(continuation* item) noexcept;

/// The part that does not depend on the value. Thread-safe. The caller of a member must hold a reference for the
/// duration of the call. The producer completes the state before it drops its own reference.
class future_state_base {
 public:
  /// Starts with one reference, owned by the creator.
  future_state_base() noexcept = default;
  future_state_base(const future_state_base&) = delete;
  future_state_base& operator=(const future_state_base&) = delete;

  void add_ref() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy();
  }
  /// Whether the caller's reference is the only one. If so, no other thread can add one.
  [[nodiscard]] bool unique() const noexcept { return references_.load(std::memory_order_acquire) == 1; }

  /// Complete, with a value or an error.
  [[nodiscard]] bool ready() const noexcept { return (phase() & complete_bit) != 0; }
  [[nodiscard]] bool has_value() const noexcept { return phase() == value_phase; }
  [[nodiscard]] bool failed() const noexcept { return phase() == error_phase; }
  /// The error; null unless failed().
  [[nodiscard]] std::exception_ptr error() const noexcept { return failed() ? error_ : nullptr; }
  void throw_if_failed() const {
    if (failed()) std::rethrow_exception(error_);
  }

  /// Call once complete. The calling thread's current streams wait for the device work that produces the value's
  /// tensors, and until the arguments of the call have been read; the host does not wait. Throws errc::device_failure,
  /// unless the state has failed already.
  void let_streams_wait() const {
    if (order_) let_streams_wait_in_order();
  }
  /// Call once complete. Null: there is no device work to wait for.
  [[nodiscard]] const value_order* order() const noexcept { return order_.get(); }

  /// Completes with an error. The first completion wins; returns false if the state was already complete or being
  /// completed.
  bool try_set_error(std::exception_ptr error) noexcept;

  /// Calls on_cancel() if still pending.
  void cancel() {
    if (!ready()) on_cancel();
  }
  /// Completes with `error` (default: call_cancelled) and marks the state as cancelled by the consumer.
  void complete_cancelled(std::exception_ptr error = nullptr) noexcept;
  [[nodiscard]] bool cancelled() const noexcept {
    return (status_.load(std::memory_order_acquire) & cancelled_bit) != 0;
  }
  /// Returns true once if the state was completed by complete_cancelled(): the producer's late completion is then
  /// dropped silently. Otherwise a second completion is an error.
  bool absorb_completion() noexcept;

  /// Blocks until complete; false if the deadline passed first. Calls help_wait() before it sleeps. May throw what
  /// blocking_observer::before_blocking() throws (resource_exhausted), before it sleeps.
  bool wait(deadline until) {
    if (ready()) return true;
    return wait_slow(until);
  }

  /// Invokes `item` on completion. Returns false if already complete; `item` is then not used. If it returns true,
  /// `item` may already have been invoked and freed.
  bool try_attach(continuation* item) noexcept;
  /// Like try_attach(), but if already complete, dispatches `item` at once.
  void attach(continuation* item) noexcept {
    if (!try_attach(item)) dispatch(item);
  }

 protected:
  virtual ~future_state_base();
  /// Called by cancel() without locks, possibly by several threads at once and concurrently with completion. An
  /// override must complete the state, immediately or soon.
  virtual void on_cancel() { complete_cancelled(); }
  /// Called by a waiting thread before it sleeps, outside blocking_scope. It may work until the state is complete or
  /// the deadline has passed and return true, or return false at any time; the caller then sleeps.
  virtual bool help_wait(deadline until);
  /// Frees the state after the last reference is dropped. Overridden by pools.
  virtual void destroy() noexcept { delete this; }

  static constexpr std::uint32_t pending_phase = 0;
  static constexpr std::uint32_t claimed_phase = 1;
  static constexpr std::uint32_t complete_bit = 2;
  static constexpr std::uint32_t value_phase = 2;
  static constexpr std::uint32_t error_phase = 3;
  static constexpr std::uint32_t phase_mask = 3;
  static constexpr std::uint32_t waiting_bit = 4;  // a thread sleeps on status_
  static constexpr std::uint32_t taken_bit = 8;    // a move-only value has been moved out
  static constexpr std::uint32_t cancelled_bit = 16;
  static constexpr std::uint32_t absorbed_bit = 32;

  [[nodiscard]] std::uint32_t phase() const noexcept { return status_.load(std::memory_order_acquire) & phase_mask; }
  /// pending -> claimed. If true, the caller may write the value or the error and must publish it.
  bool claim() noexcept;
  /// claimed -> complete; wakes waiters and dispatches continuations.
  void publish(std::uint32_t status) noexcept;
  void publish_error(std::exception_ptr error, std::uint32_t extra_bits = 0) noexcept;
  /// Call while claimed, or before the state is shared. See order().
  void set_order(std::unique_ptr<value_order> order) noexcept {
    if (!order) return;
    if (order_) order->add_reads_of(*order_);
    order_ = std::move(order);
  }
  /// Marks the value as moved out; throws errc::no_state if it is already marked.
  void mark_taken();
  void check_not_taken() const;

 private:
  bool wait_slow(deadline until);
  void let_streams_wait_in_order() const;

  std::atomic<std::uint32_t> references_{1};
  std::atomic<std::uint32_t> status_{pending_phase};
  std::atomic<work*> continuations_{nullptr};  // newest first; closed_list() once complete
  std::exception_ptr error_;
  std::unique_ptr<value_order> order_;
};

// Containers declare a copy constructor regardless of their element type, so is_copy_constructible is true for a vector
// of unique_ptr. Check the element type as well.
template <class T>
consteval bool is_copyable() {
  if constexpr (!std::is_copy_constructible_v<T>) {
    return false;
  } else if constexpr (requires { typename T::value_type; }) {
    if constexpr (std::is_same_v<typename T::value_type, T>) {
      return true;
    } else {
      return is_copyable<typename T::value_type>();
    }
  } else {
    return true;
  }
}

struct no_value {};
template <class T>
using stored_t = std::conditional_t<std::is_void_v<T>, no_value, T>;

template <class T>
class future_state : public future_state_base {
  static_assert(!std::is_reference_v<T>, "a future holds a value: use future<T>, not future<T&>");
  static_assert(!std::is_const_v<T>,
                "a future holds a value that can be moved out: use future<T>, not future<const T>");

 public:
  using value_type = stored_t<T>;
  /// Whether the value can be read more than once by copying.
  static constexpr bool copyable = is_copyable<value_type>();

  future_state() noexcept {}  // NOLINT(modernize-use-equals-default): the union member stays unconstructed

  /// Completes with a value constructed in place from `args` (none for void). The first completion wins; otherwise
  /// returns false and leaves `args` untouched. If construction throws, the state completes with that error.
  template <class... A>
    requires std::is_constructible_v<stored_t<T>, A...>
  bool try_set_value(A&&... args) noexcept {
    if (!claim()) return false;
    if constexpr (std::is_nothrow_constructible_v<value_type, A...>) {
      std::construct_at(std::addressof(value_), std::forward<A>(args)...);
    } else {
      if (auto failure = caught([&] { std::construct_at(std::addressof(value_), std::forward<A>(args)...); })) {
        publish_error(std::move(failure));
        return true;
      }
    }
    if constexpr (!free_of_tensors<value_type>) {
      if (streams_in_use.load(std::memory_order_relaxed)) {
        if (auto failure = caught([&] { this->set_order(order_of_value(value_)); })) {
          std::destroy_at(std::addressof(value_));
          publish_error(std::move(failure));
          return true;
        }
      }
    }
    publish(value_phase);
    return true;
  }

  // The four functions below require has_value().

  [[nodiscard]] const value_type& value() const {
    if constexpr (!copyable) check_not_taken();
    return value_;
  }
  /// For one of several owners: returns a copy. A value that cannot be copied is moved out once; later calls throw
  /// errc::no_state.
  value_type copy_or_take() {
    if constexpr (copyable) {
      return value_;
    } else {
      return take();
    }
  }
  /// Moves the value out; the caller must be its only reader.
  value_type take() {
    if constexpr (!copyable) mark_taken();
    return std::move(value_);
  }
  /// take() if `self` is the last reference, else copy_or_take().
  static value_type consume(ref_ptr<future_state> self) {
    if (self->unique()) return self->take();
    return self->copy_or_take();
  }

 protected:
  ~future_state() override {
    if (has_value()) std::destroy_at(std::addressof(value_));
  }

 private:
  union {
    value_type value_;
  };
};

}  // namespace ferry::inline v0::detail

#pragma once

// What a future and its promise share: one object with a reference count, a status word that waiters sleep on, a list
// of continuations, and the value or the error. A call's own state derives from future_state<R>, so that a call with
// its future is one allocation.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>
#include <ferry/base/work.hpp>
#include <ferry/rpc/context.hpp>
#include <ferry/rpc/detail/value_order.hpp>

namespace ferry::inline v0::detail {

/// Shared ownership of an object that counts its own references (add_ref, release).
template <class S>
class ref_ptr {
 public:
  ref_ptr() noexcept = default;
  /// Takes over a reference that the caller holds.
  static ref_ptr adopt(S* object) noexcept { return ref_ptr(object); }
  /// A further reference.
  static ref_ptr share(S* object) noexcept {
    if (object) object->add_ref();
    return ref_ptr(object);
  }
  ref_ptr(const ref_ptr& other) noexcept : object_(other.object_) {
    if (object_) object_->add_ref();
  }
  ref_ptr(ref_ptr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <class D>
    requires std::is_convertible_v<D*, S*>
  ref_ptr(ref_ptr<D>&& other) noexcept : object_(other.detach()) {}  // NOLINT(google-explicit-constructor)
  ref_ptr& operator=(ref_ptr other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~ref_ptr() {
    if (object_) object_->release();
  }
  [[nodiscard]] S* get() const noexcept { return object_; }
  S* operator->() const noexcept { return object_; }
  S& operator*() const noexcept { return *object_; }
  explicit operator bool() const noexcept { return object_ != nullptr; }
  /// Gives the reference to the caller.
  [[nodiscard]] S* detach() noexcept { return std::exchange(object_, nullptr); }

 private:
  explicit ref_ptr(S* object) noexcept : object_(object) {}
  S* object_ = nullptr;
};

/// What `run` throws, null if nothing. It is no longer being handled when another thread receives it: where a thread publishes
/// an exception and then leaves the handler, ThreadSanitizer sees a race between its last reference and that of the other
/// one, whose count is in a library that is not instrumented.
template <class F>
[[nodiscard]] std::exception_ptr caught(F&& run) noexcept {
  try {
    std::forward<F>(run)();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// Something to do once a state is complete. Lives in its owner (a coroutine frame, a child state), which keeps it
/// alive until `invoke` is called: exactly once, under context_scope(context). `invoke` may free it.
struct continuation : work {
  void (*invoke)(continuation* self) noexcept = nullptr;
  /// Where it was attached. With an executor: invoke runs there. Empty: on the thread that completes or attaches.
  context_ptr context;
};

/// Runs `item` on the executor of its context, else on this thread (nested to a bounded depth, then after the running
/// ones; a thread that is about to sleep in a wait runs those first).
void dispatch(continuation* item) noexcept;

/// The part without the value. Thread-safe. The caller of a member holds a reference for the length of the call.
/// The completing thread completes it before it drops its own reference.
class future_state_base {
 public:
  /// Starts with one reference, the creator's.
  future_state_base() noexcept = default;
  future_state_base(const future_state_base&) = delete;
  future_state_base& operator=(const future_state_base&) = delete;

  void add_ref() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) destroy();
  }
  /// Whether the caller's reference is the only one (so that no other can appear meanwhile).
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

  /// Once complete: the calling thread's current streams wait for the devices that the value's tensors are on, and for the reading
  /// of the arguments it was computed of; the host does not. Throws errc::device_failure, unless there is an error already.
  void let_streams_wait() const {
    if (order_) let_streams_wait_in_order();
  }
  /// Once complete; null: there is nothing to wait for.
  [[nodiscard]] const value_order* order() const noexcept { return order_.get(); }

  /// Completes with an error. The first completion wins; false if this was not it.
  bool try_set_error(std::exception_ptr error) noexcept;

  /// Calls on_cancel() if still pending.
  void cancel() {
    if (!ready()) on_cancel();
  }
  /// Completes with `error`, by default a plain call_cancelled, remembering that it was the consumer who gave up.
  void complete_cancelled(std::exception_ptr error = nullptr) noexcept;
  [[nodiscard]] bool cancelled() const noexcept {
    return (status_.load(std::memory_order_acquire) & cancelled_bit) != 0;
  }
  /// True once if the state was completed by complete_cancelled(): the producer's completion that came too late is then
  /// dropped in silence, where it would else be an error.
  bool absorb_completion() noexcept;

  /// Blocks until complete; false if the deadline passed first. Calls help_wait() before it sleeps.
  /// May throw what blocking_observer::before_blocking() throws (resource_exhausted), then without having slept.
  bool wait(deadline until) {
    if (ready()) return true;
    return wait_slow(until);
  }

  /// Has `item` invoked on completion; false, and item is not touched again, if already complete.
  /// After true the item may already have been invoked and freed.
  bool try_attach(continuation* item) noexcept;
  /// The same, but a complete state dispatches it at once.
  void attach(continuation* item) noexcept {
    if (!try_attach(item)) dispatch(item);
  }

 protected:
  virtual ~future_state_base();
  /// Called by cancel(), without locks, perhaps by several threads and when completion is under way. A class that overrides
  /// it completes the state, now or soon.
  virtual void on_cancel() { complete_cancelled(); }
  /// Called by a thread that waits, before it sleeps and outside blocking_scope: may work until the state is complete
  /// or the deadline has passed (then true), or return at any time (then false: the caller sleeps).
  virtual bool help_wait(deadline until);
  /// Frees the state when the last reference is gone; for pools.
  virtual void destroy() noexcept { delete this; }

  static constexpr std::uint32_t pending_phase = 0;
  static constexpr std::uint32_t claimed_phase = 1;
  static constexpr std::uint32_t complete_bit = 2;
  static constexpr std::uint32_t value_phase = 2;
  static constexpr std::uint32_t error_phase = 3;
  static constexpr std::uint32_t phase_mask = 3;
  static constexpr std::uint32_t waiting_bit = 4;  // a thread sleeps on status_
  static constexpr std::uint32_t taken_bit = 8;    // a move-only value was moved out
  static constexpr std::uint32_t cancelled_bit = 16;
  static constexpr std::uint32_t absorbed_bit = 32;

  [[nodiscard]] std::uint32_t phase() const noexcept { return status_.load(std::memory_order_acquire) & phase_mask; }
  /// pending -> claimed: the caller may write the value or the error and must publish it.
  bool claim() noexcept;
  /// claimed -> complete; wakes waiters and dispatches continuations.
  void publish(std::uint32_t status) noexcept;
  void publish_error(std::exception_ptr error, std::uint32_t extra_bits = 0) noexcept;
  /// While claimed, or before it is shared: see order().
  void set_order(std::unique_ptr<value_order> order) noexcept {
    if (!order) return;
    if (order_) order->add_reads_of(*order_);
    order_ = std::move(order);
  }
  /// Marks the value as moved out; throws errc::no_state if it already was.
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

// Containers declare a copy constructor whatever they hold, so is_copy_constructible says yes for a vector of
// unique_ptr: look at what they hold as well.
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

  /// Completes with a value built in place from `args` (none for void). The first completion wins; false if this was
  /// not it, then `args` are untouched. If building throws, that error completes the state.
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

  // The four below need has_value().

  [[nodiscard]] const value_type& value() const {
    if constexpr (!copyable) check_not_taken();
    return value_;
  }
  /// For one of several owners: a copy, or the value itself (once, else errc::no_state) where it cannot be copied.
  value_type copy_or_take() {
    if constexpr (copyable) {
      return value_;
    } else {
      return take();
    }
  }
  /// The value itself; the caller is the only one who reads it.
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

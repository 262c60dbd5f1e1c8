#pragma once

// future<T>: the result of an asynchronous operation. promise<T> (promise.hpp) is the producer side.

#include <chrono>
#include <concepts>
#include <coroutine>
#include <optional>

#include <ferry/rpc/detail/async_traits.hpp>
#include <ferry/rpc/detail/future_state.hpp>

namespace ferry::inline v0 {

namespace detail {

template <class F, class T>
inline constexpr bool takes_value = std::is_invocable_v<F, T>;
template <class F>
inline constexpr bool takes_value<F, void> = std::is_invocable_v<F>;

// The result type of a callback. If it accepts both the future and the value, it is called with the future.
template <class F, class T>
struct callback_result {
  static auto probe() {
    if constexpr (std::is_invocable_v<F, future<T>>) {
      return std::type_identity<std::invoke_result_t<F, future<T>>>{};
    } else if constexpr (std::is_void_v<T>) {
      return std::type_identity<std::invoke_result_t<F>>{};
    } else {
      return std::type_identity<std::invoke_result_t<F, T>>{};
    }
  }
  using type = typename decltype(probe())::type;
};

template <class F, class T>
concept future_callback = std::is_invocable_v<F, future<T>> || takes_value<F, T>;

// Detects null function pointers and empty std::functions (any non-empty class that can be compared with nullptr).
template <class F>
bool is_null_callback(const F& callback) {
  if constexpr (std::is_pointer_v<F>) {
    return callback == nullptr;
  } else if constexpr (std::is_class_v<F> && !std::is_empty_v<F> && requires { bool(callback == nullptr); }) {
    return callback == nullptr;
  } else {
    return false;
  }
}

[[noreturn]] void throw_no_state(const char* operation);
[[noreturn]] void throw_null_callback(const char* operation);
[[noreturn]] void throw_not_ready();
[[noreturn]] void throw_empty_inner();
void log_callback_error() noexcept;  // in a catch block

template <class T, class U, class F>
class then_state;
template <class T, class F>
class done_node;
template <class T>
class future_awaiter;

}  // namespace detail

/// A handle to the result of an asynchronous operation: a value or an error. Copies share the result. Distinct handles
/// may be used concurrently; one handle is not synchronised, like any variable. Destroying the last handle does not
/// cancel the operation.
///
/// Continuations and coroutines run on the handler threads of the worker in whose call context they were attached
/// (current_context() at that time), under that context, even if the result was already available; they may block.
/// Without a context they run on the thread that completes the future, or on the one that attaches. In either case they
/// have the context values (context_values.hpp) that were in force where they were attached.
///
/// If the value has tensors on devices, device work may still be running when the future is complete: wait(), get() and
/// co_await make the current streams of their thread wait, never the host. Callbacks run with streams that wait for the
/// value. Tensors are found in every type that can be sent (wire_serialisable); in other types the program must order
/// device work itself. For the future of a call these streams also wait until the arguments on devices have been read,
/// whether the call succeeds or fails.
///
/// Every member but valid() throws errc::no_state on an empty handle.
template <class T>
class future {
 public:
  using value_type = T;

  future() noexcept = default;
  /// For producers that define their own state type.
  explicit future(detail::ref_ptr<detail::future_state<T>> state) noexcept : state_(std::move(state)) {}

  [[nodiscard]] bool valid() const noexcept { return static_cast<bool>(state_); }

  /// Complete, with a value or an error. Does not block.
  [[nodiscard]] bool ready() const { return state("ready").ready(); }
  /// Complete with an error.
  [[nodiscard]] bool failed() const { return state("failed").failed(); }
  /// Returns the error without blocking; null unless failed().
  [[nodiscard]] std::exception_ptr error() const { return state("error").error(); }

  /// Blocks until complete; rethrows the error on every call. While a handler waits, the worker runs other handlers on
  /// additional threads; throws resource_exhausted if too many handlers already wait, and forked_process in a forked
  /// child. So do all waits below.
  void wait() const {
    state("wait").wait(deadline{});
    state_->let_streams_wait();
    state_->throw_if_failed();
  }
  /// Blocks until complete (returns true) or until `limit` has passed (returns false). Does not throw the future's
  /// error. A limit of zero or less does not block, as with std::future.
  template <class Rep, class Period>
  [[nodiscard]] bool wait_for(std::chrono::duration<Rep, Period> limit) const {
    return state("wait_for").wait(limit.count() > 0 ? deadline::after(limit) : deadline(clock::time_point::min()));
  }
  /// The same; no_timeout, or unset: no limit.
  [[nodiscard]] bool wait_for(timeout limit) const { return state("wait_for").wait(deadline::after(limit)); }
  [[nodiscard]] bool wait_until(deadline until) const { return state("wait_until").wait(until); }

  /// Blocks, then returns the value or throws the error. May be called any number of times through any copy of the
  /// handle: each call returns a copy of the value. The first call moves out a value that cannot be copied; later calls
  /// throw errc::no_state.
  T get() const& {
    state("get");
    wait();
    if constexpr (!std::is_void_v<T>) return state_->copy_or_take();
  }
  /// Like get() const, but empties this handle; the value is moved, not copied, if this is the last handle.
  T get() && {
    auto state = take_state("get");
    state->wait(deadline{});
    state->let_streams_wait();
    state->throw_if_failed();
    if constexpr (!std::is_void_v<T>) return detail::future_state<T>::consume(std::move(state));
  }
  /// Returns a reference to the value without blocking; no stream waits for it. Throws the error, or errc::no_state if
  /// not complete. Does not move the value out; it lives as long as a handle does.
  const detail::stored_t<T>& value() const {
    if (!state("value").ready()) detail::throw_not_ready();
    state_->throw_if_failed();
    return state_->value();
  }

  /// Returns a child future with the result of `callback`, which is stored (moved or copied) and called once this
  /// future is complete. A callback that accepts a future<T> is called with this future, whether it has a value or an
  /// error; get() rethrows the error. Any other callback is called with the value (no argument for void); on an error
  /// it is not called, and the child fails with that error. An exception thrown by the callback becomes the child's
  /// error. If it returns `future<U>` or `task<U>`, the child is a `future<U>`. Several callbacks run in unspecified
  /// order. Cancelling the child does not cancel this future; a callback that has not started is skipped. Throws
  /// errc::invalid_argument on a null callback.
  template <class F>
  auto then(F&& callback) const {
    using function = std::decay_t<F>;
    static_assert(detail::future_callback<function, T>,
                  "then(callback): the callback must be callable with a ferry::future<T>, or with its value T (with no "
                  "argument for future<void>)");
    if constexpr (detail::future_callback<function, T>) {
      using result = unwrap_async_t<typename detail::callback_result<function, T>::type>;
      using child = detail::then_state<T, result, function>;
      state("then");
      if (detail::is_null_callback(callback)) detail::throw_null_callback("then");
      return child::attach_to(state_, std::forward<F>(callback));
    }
  }
  /// Like then(), but without a child future: the callback's result is dropped, and an exception that it throws is
  /// logged as an error. A callback that takes the value is not called on an error.
  template <class F>
  void add_done_callback(F&& callback) const {
    using function = std::decay_t<F>;
    static_assert(detail::future_callback<function, T>,
                  "add_done_callback(callback): the callback must be callable with a ferry::future<T>, or with its "
                  "value T (with no argument for future<void>)");
    if constexpr (detail::future_callback<function, T>) {
      static_assert(!is_task_v<typename detail::callback_result<function, T>::type>,
                    "add_done_callback(callback): a ferry::task that is not started does nothing; use then(callback)");
      static_assert(!is_future_v<typename detail::callback_result<function, T>::type>,
                    "add_done_callback(callback): the future it returns would be dropped; use then(callback)");
      state("add_done_callback");
      if (detail::is_null_callback(callback)) detail::throw_null_callback("add_done_callback");
      detail::done_node<T, function>::attach_to(state_, std::forward<F>(callback));
    }
  }

  /// Cancels: completes with call_cancelled unless already complete. For a call, notifies the callee.
  void cancel() const { state("cancel").cancel(); }

  /// Suspends the coroutine until complete, without blocking a thread; then like get().
  detail::future_awaiter<T> operator co_await() const& {
    state("co_await");
    return detail::future_awaiter<T>(state_);
  }
  detail::future_awaiter<T> operator co_await() && { return detail::future_awaiter<T>(take_state("co_await")); }

  /// The shared state, for the library; null if empty.
  [[nodiscard]] const detail::ref_ptr<detail::future_state<T>>& shared_state() const& noexcept { return state_; }

 private:
  detail::future_state<T>& state(const char* operation) const {
    if (!state_) detail::throw_no_state(operation);
    return *state_;
  }
  detail::ref_ptr<detail::future_state<T>> take_state(const char* operation) {
    if (!state_) detail::throw_no_state(operation);
    return std::move(state_);
  }

  detail::ref_ptr<detail::future_state<T>> state_;
};

namespace detail {

template <class T>
class future_awaiter : private continuation {
 public:
  explicit future_awaiter(ref_ptr<future_state<T>> state) noexcept : state_(std::move(state)) {}

  [[nodiscard]] bool await_ready() const noexcept { return state_->ready(); }
  bool await_suspend(std::coroutine_handle<> waiter) noexcept {
    waiter_ = waiter;
    this->where = captured_context::current();
    this->invoke = &resume;
    // After a successful attach the coroutine may already run on another thread and *this may have been destroyed.
    return state_->try_attach(this);
  }
  T await_resume() {
    state_->let_streams_wait();
    state_->throw_if_failed();
    if constexpr (!std::is_void_v<T>) return future_state<T>::consume(std::move(state_));
  }

 private:
  static void resume(continuation* self) noexcept;

  ref_ptr<future_state<T>> state_;
  std::coroutine_handle<> waiter_;
};

/// Resumes `handle` and then each coroutine that control is transferred to (see transfer), until one suspends without a
/// transfer.
void run_coroutine(std::coroutine_handle<> handle) noexcept;
/// Call in an await_suspend of `from`: continues with `to` without growing the stack, at any optimisation level.
void transfer(std::coroutine_handle<> from, std::coroutine_handle<> to) noexcept;

template <class T>
void future_awaiter<T>::resume(continuation* self) noexcept {
  run_coroutine(static_cast<future_awaiter*>(self)->waiter_);
}

// A callback and its argument. Both must live until the returned task or future is complete: a coroutine callback may
// take the argument by reference, and its captures are members of the callback object.
template <class T, class F>
class bound_callback {
 public:
  static constexpr bool takes_future = std::is_invocable_v<F, future<T>>;

  template <class G>
  bound_callback(const ref_ptr<future_state<T>>& parent, G&& callback)
      : callback_(std::forward<G>(callback)), parent_(parent) {}

  /// Whether the callback takes a value but the parent has failed: the error then goes to the child.
  [[nodiscard]] bool skipped() const { return !takes_future && parent_.failed(); }
  [[nodiscard]] std::exception_ptr parent_error() const { return parent_.error(); }
  [[nodiscard]] const value_order* parent_order() const { return parent_.shared_state()->order(); }

  decltype(auto) operator()() {
    if constexpr (takes_future) {
      return std::move(callback_)(std::move(parent_));
    } else if constexpr (std::is_void_v<T>) {
      return std::move(callback_)();
    } else {
      argument_.emplace(std::move(parent_).get());
      return std::move(callback_)(std::move(*argument_));
    }
  }

 private:
  F callback_;
  future<T> parent_;
  [[no_unique_address]] std::conditional_t<takes_future, no_value, std::optional<stored_t<T>>> argument_;
};

// The child of then(): its state, the callback and the continuation node in one object. The node holds a reference to
// the object while it is attached to the parent.
template <class T, class U, class F>
class then_state final : public future_state<U>, private continuation {
  using result_type = typename callback_result<F, T>::type;

 public:
  template <class G>
  static future<U> attach_to(const ref_ptr<future_state<T>>& parent, G&& callback) {
    auto child = ref_ptr<then_state>::adopt(new then_state(parent, std::forward<G>(callback)));
    child->add_ref();
    parent->attach(child.get());
    return future<U>(std::move(child));
  }

 private:
  template <class G>
  then_state(const ref_ptr<future_state<T>>& parent, G&& callback) {
    callback_.emplace(parent, std::forward<G>(callback));
    this->where = captured_context::current();
    this->invoke = &run;
  }

  // Destroys the callback and its captures before the child completes, so that a thread that waits for the child
  // observes them destroyed.
  void fail(std::exception_ptr error) noexcept {
    callback_.reset();
    this->try_set_error(std::move(error));
  }

  static void run(continuation* node) noexcept {
    auto self = ref_ptr<then_state>::adopt(static_cast<then_state*>(node));
    if (self->ready()) {  // cancelled
      self->callback_.reset();
      return;
    }
    if (self->callback_->skipped()) {
      self->fail(self->callback_->parent_error());
      return;
    }
    // The child's value is made in the order of these streams.
    const callback_streams streams(self->callback_->parent_order());
    if (auto failure = caught([&] { self->complete(); })) self->fail(std::move(failure));
  }

  void complete() {
    if constexpr (is_task_v<result_type> || is_future_v<result_type>) {
      if constexpr (is_task_v<result_type>) {
        inner_ = start((*callback_)());
      } else {
        inner_ = (*callback_)();
      }
      if (!inner_.valid()) throw_empty_inner();
      this->add_ref();
      this->invoke = &forward;
      // No context: passing on a result does not justify a switch to another thread. The values are those of the
      // callback, for the code of users that copies the result and destroys the captures. *this may be complete and
      // destroyed when attach() returns.
      this->where.values = current_values();
      const auto inner = inner_.shared_state();
      inner->attach(this);
    } else if constexpr (std::is_void_v<U>) {
      (*callback_)();
      callback_.reset();
      this->try_set_value();
    } else {
      U result = (*callback_)();
      callback_.reset();
      this->try_set_value(std::move(result));
    }
  }

  static void forward(continuation* node) noexcept {
    auto self = ref_ptr<then_state>::adopt(static_cast<then_state*>(node));
    self->callback_.reset();
    auto inner = std::move(self->inner_);
    if (inner.failed()) {
      self->try_set_error(inner.error());
      return;
    }
    const callback_streams streams(inner.shared_state()->order());
    auto failure = caught([&] {
      if constexpr (std::is_void_v<U>) {
        self->try_set_value();
      } else {
        self->try_set_value(std::move(inner).get());
      }
    });
    if (failure) self->try_set_error(std::move(failure));
  }

  std::optional<bound_callback<T, F>> callback_;
  [[no_unique_address]] std::conditional_t<is_task_v<result_type> || is_future_v<result_type>, future<U>, no_value>
      inner_;
};

template <class T, class F>
class done_node final : private continuation {
 public:
  template <class G>
  static void attach_to(const ref_ptr<future_state<T>>& parent, G&& callback) {
    parent->attach(new done_node(parent, std::forward<G>(callback), captured_context::current()));
  }
  template <class G>
  static void attach_inline(const ref_ptr<future_state<T>>& parent, G&& callback) {
    parent->attach(new done_node(parent, std::forward<G>(callback), {}));
  }

 private:
  template <class G>
  done_node(const ref_ptr<future_state<T>>& parent, G&& callback, captured_context in)
      : callback_(parent, std::forward<G>(callback)) {
    this->where = std::move(in);
    this->invoke = &run;
  }
  static void run(continuation* node) noexcept {
    auto* self = static_cast<done_node*>(node);
    if (!self->callback_.skipped()) {
      const callback_streams streams(self->callback_.parent_order());
      try {
        self->callback_();
      } catch (...) {
        log_callback_error();
      }
    }
    delete self;
  }

  bound_callback<T, F> callback_;
};

/// Like future::add_done_callback(), but the callback runs on the thread that completes the future, in no context, and that may
/// be one that reads a connection: it must not block.
template <class T, class F>
void add_inline_callback(const future<T>& of, F&& callback) {
  done_node<T, std::remove_cvref_t<F>>::attach_inline(of.shared_state(), std::forward<F>(callback));
}

}  // namespace detail

}  // namespace ferry::inline v0

#pragma once

// task<T>: a coroutine that starts when it is awaited, and does not block a thread while it waits.
//
// Everything that a coroutine refers to must outlive it. The coroutine stores its parameters, but not the objects that
// references and lambda captures refer to. A coroutine may resume on another thread after every co_await: do not hold a
// lock or a context_scope across one. A scope of context values may be held across it.

#include <coroutine>
#include <exception>
#include <optional>

#include <ferry/rpc/detail/foreign_awaiter.hpp>
#include <ferry/rpc/future.hpp>

namespace ferry::inline v0 {

namespace detail {

[[noreturn]] void throw_task_empty(const char* operation);

// Passes a task's result to the coroutine that awaits it, or to a future.
template <class T>
class task_promise_base {
 public:
  struct final_awaiter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    template <class P>
    void await_suspend(std::coroutine_handle<P> finished) const noexcept {
      task_promise_base& promise = finished.promise();
      if (promise.target_) {
        promise.complete_target(finished);
      } else {
        transfer(finished, promise.waiter_);
      }
    }
    void await_resume() const noexcept {}
  };

  [[nodiscard]] std::suspend_always initial_suspend() const noexcept { return {}; }
  [[nodiscard]] final_awaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { error_ = detail::current_error(); }
  template <class A>
  decltype(auto) await_transform(A&& awaitable) {
    if constexpr (is_future_v<std::remove_cvref_t<A>> || is_task_v<std::remove_cvref_t<A>>) {
      return static_cast<A&&>(awaitable);
    } else if constexpr (!awaiter<std::remove_reference_t<decltype(awaiter_of(std::declval<A>()))>>) {
      static_assert(
          awaiter<std::remove_reference_t<decltype(awaiter_of(std::declval<A>()))>>,
          "ferry: what this co_await is given is no awaitable. rpc_sync() and future::get() give the value itself: "
          "co_await rpc_async<f>(...) instead");
      return std::suspend_never();
    } else {
      return foreign_awaiter<decltype(awaiter_of(std::declval<A>()))>(std::in_place, std::forward<A>(awaitable));
    }
  }

  void set_waiter(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  void set_target(ref_ptr<future_state<T>> target) noexcept { target_ = std::move(target); }
  /// Returns false if the task was already started.
  bool mark_started() noexcept { return !std::exchange(started_, true); }
  T take_result() {
    if (error_) std::rethrow_exception(std::move(error_));
    if constexpr (!std::is_void_v<T>) return std::move(*value_);
  }

 protected:
  std::optional<stored_t<T>> value_;

 private:
  // Destroys the frame, with the parameters of the coroutine, before the future completes, so that a thread that waits
  // for the future observes them destroyed. The coroutine is suspended at its end: *this must not be used after
  // destroy().
  void complete_target(std::coroutine_handle<> frame) noexcept {
    auto target = std::move(target_);
    std::exception_ptr error = std::move(error_);
    std::optional<stored_t<T>> value;
    if (!error) {
      try {
        value.emplace(std::move(*value_));
      } catch (...) {
        error = detail::current_error();
      }
    }
    frame.destroy();
    if (error) {
      target->try_set_error(std::move(error));
    } else {
      target->try_set_value(std::move(*value));
    }
  }

  std::exception_ptr error_;
  std::coroutine_handle<> waiter_;
  ref_ptr<future_state<T>> target_;
  bool started_ = false;
};

template <class T>
class task_result : public task_promise_base<T> {
 public:
  template <class V = T>
    requires std::is_constructible_v<T, V>
  void return_value(V&& value) {
    this->value_.emplace(std::forward<V>(value));
  }
};
template <>
class task_result<void> : public task_promise_base<void> {
 public:
  void return_void() noexcept { value_.emplace(); }
};

template <class T>
class task_promise;
template <class T>
class task_awaiter;

}  // namespace detail

/// A coroutine that has not started yet. Await it in another coroutine, or pass it to start() or sync_wait(), once. It
/// runs in the call context and with the context values of the code that starts or awaits it: after every suspension it
/// resumes on the handler threads of that context, with the values that it had; after an awaitable of another library, in the same
/// context and with the same values on the thread that resumes it. Move-only. If destroyed before it is started, it never runs. Not thread-safe.
template <class T>
class [[nodiscard]] task {
  static_assert(!std::is_reference_v<T>, "a task returns a value: use task<T>, not task<T&>");

 public:
  using value_type = T;
  using promise_type = detail::task_promise<T>;

  task() noexcept = default;
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      if (handle_) handle_.destroy();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  task(const task&) = delete;
  task& operator=(const task&) = delete;
  /// Destroys the coroutine. It must not have started without having finished; a task that is awaited within one
  /// expression never violates this.
  ~task() {
    if (handle_) handle_.destroy();
  }

  [[nodiscard]] bool valid() const noexcept { return static_cast<bool>(handle_); }

  /// Runs the task on this thread until its first suspension, and resumes the awaiting coroutine when the task is done;
  /// throws what the task throws. Await a named task as `co_await std::move(t)`; it must live until the await ends.
  /// Throws errc::no_state on an empty or used task.
  detail::task_awaiter<T> operator co_await() &&;

  /// Transfers ownership of the coroutine to the caller. For the library.
  [[nodiscard]] std::coroutine_handle<promise_type> release(const char* operation) {
    if (!handle_ || !handle_.promise().mark_started()) detail::throw_task_empty(operation);
    return std::exchange(handle_, nullptr);
  }

 private:
  friend promise_type;
  explicit task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

namespace detail {

template <class T>
class task_promise final : public task_result<T> {
 public:
  task<T> get_return_object() noexcept { return task<T>(std::coroutine_handle<task_promise>::from_promise(*this)); }
};

// Trivially destructible: g++ 12 destroys some temporaries of a co_await expression twice.
template <class T>
class task_awaiter {
 public:
  explicit task_awaiter(std::coroutine_handle<task_promise<T>> child) noexcept : child_(child) {}
  [[nodiscard]] bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> waiter) const noexcept {
    child_.promise().set_waiter(waiter);
    transfer(waiter, child_);
  }
  T await_resume() const { return child_.promise().take_result(); }

 private:
  std::coroutine_handle<task_promise<T>> child_;
};

/// Runs `handle` on this thread in the current context until its first suspension.
void start_coroutine(std::coroutine_handle<> handle);

// A coroutine that returns future<T> starts at once, on the caller's thread.
template <class T>
class future_promise final : public task_result<T> {
 public:
  // Runs the coroutine until its first suspension as every later part is run: the values that it puts in force do not
  // reach its caller. Its frame may be destroyed when run_coroutine() returns.
  struct starter {
    [[nodiscard]] bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> started) const noexcept { run_coroutine(started); }
    void await_resume() const noexcept {}
  };
  [[nodiscard]] starter initial_suspend() const noexcept { return {}; }
  future<T> get_return_object() {
    auto state = ref_ptr<future_state<T>>::adopt(new future_state<T>);
    this->set_target(state);
    return future<T>(std::move(state));
  }
};

}  // namespace detail

template <class T>
detail::task_awaiter<T> task<T>::operator co_await() && {
  if (!handle_ || !handle_.promise().mark_started()) detail::throw_task_empty("co_await");
  return detail::task_awaiter<T>(handle_);
}

/// Runs `work` on this thread until its first suspension and returns its future. The coroutine owns itself: it runs to
/// completion even if the future is dropped; cancelling the future only drops the result. Throws errc::no_state on an
/// empty or used task.
template <class T>
future<T> start(task<T> work) {
  auto state = detail::ref_ptr<detail::future_state<T>>::adopt(new detail::future_state<T>);
  const auto handle = work.release("start");
  handle.promise().set_target(state);
  detail::start_coroutine(handle);
  return future<T>(std::move(state));
}

/// Runs `work` to completion, blocking this thread; returns its result or throws its exception.
template <class T>
T sync_wait(task<T> work) {
  const auto result = start(std::move(work));
  result.wait();
  if constexpr (!std::is_void_v<T>) return result.shared_state()->take();
}

}  // namespace ferry::inline v0

template <class T, class... A>
struct std::coroutine_traits<ferry::future<T>, A...> {
  using promise_type = ferry::detail::future_promise<T>;
};

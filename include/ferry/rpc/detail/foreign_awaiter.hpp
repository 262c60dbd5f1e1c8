#pragma once

// Awaitables of other libraries in the coroutines of ferry. They resume a coroutine on threads that know nothing of its
// call, with its streams, and of its context values.

#include <atomic>
#include <coroutine>
#include <exception>
#include <type_traits>
#include <utility>

#include <ferry/rpc/context.hpp>
#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0::detail {

/// A suspended coroutine with its call context and context values, and a substitute: another coroutine, which resumes it in them, on
/// the thread that it is resumed on itself.
class suspended_in_context {
 public:
  suspended_in_context() noexcept = default;
  suspended_in_context(const suspended_in_context&) = delete;
  suspended_in_context& operator=(const suspended_in_context&) = delete;
  ~suspended_in_context() { dismiss(); }

  /// Takes the context and the values of the calling thread. The substitute is resumed or destroyed once at most, like `waiter` itself:
  /// to destroy it destroys `waiter`. Throws std::bad_alloc.
  std::coroutine_handle<> suspend(std::coroutine_handle<> waiter);
  /// Destroys the substitute if it was not resumed.
  void dismiss() noexcept;

 private:
  struct substitute;
  static substitute make(suspended_in_context* self);

  std::coroutine_handle<> waiter_;
  std::coroutine_handle<> substitute_;  // null once resumed or destroyed
  context_ptr context_;                 // null: the coroutine is not part of a call
  context_values values_;
};

template <class A>
concept awaiter = requires(A& a) {
  a.await_ready();
  a.await_resume();
};

/// What a co_await operator of `awaitable` returns, else `awaitable` itself.
template <class A>
decltype(auto) awaiter_of(A&& awaitable) {
  if constexpr (requires { std::forward<A>(awaitable).operator co_await(); }) {
    return std::forward<A>(awaitable).operator co_await();
  } else if constexpr (requires { operator co_await(std::forward<A>(awaitable)); }) {
    return operator co_await(std::forward<A>(awaitable));
  } else {
    return static_cast<A&&>(awaitable);
  }
}

/// Passes a substitute for the coroutine to the awaiter, in calls and in programs that have context values. An awaiter that accepts
/// one type of coroutine alone gets the coroutine itself. `Awaiter` may be a reference.
template <class Awaiter>
class foreign_awaiter {
 public:
  template <class A>
  explicit foreign_awaiter(std::in_place_t, A&& awaitable) : awaiter_(awaiter_of(std::forward<A>(awaitable))) {}

  [[nodiscard]] bool await_ready() { return static_cast<bool>(awaiter_.await_ready()); }

  // Once the awaiter has the handle, the coroutine may run on another thread and *this may be destroyed, unless
  // await_suspend() returns false or throws: then await_resume() or the destructor follows.
  template <class P>
  auto await_suspend(std::coroutine_handle<P> waiter) {
    if constexpr (takes_any<P>) {
      if (values_in_use.load(std::memory_order_relaxed) || thread_context() != nullptr)
        return awaiter_.await_suspend(state_.suspend(waiter));
    }
    return awaiter_.await_suspend(waiter);
  }

  decltype(auto) await_resume() {
    state_.dismiss();
    return awaiter_.await_resume();
  }

 private:
  template <class P>
  static constexpr bool takes_any =
      requires(Awaiter& awaiter, std::coroutine_handle<> any, std::coroutine_handle<P> waiter) {
        requires std::is_same_v<decltype(awaiter.await_suspend(any)), decltype(awaiter.await_suspend(waiter))>;
      };

  Awaiter awaiter_;
  suspended_in_context state_;
};

}  // namespace ferry::inline v0::detail

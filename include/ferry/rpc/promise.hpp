#pragma once

// promise<T>: the producer side of a future<T>.

#include <ferry/rpc/future.hpp>

namespace ferry::inline v0 {

namespace detail {
[[noreturn]] void throw_promise_satisfied();
[[noreturn]] void throw_promise_empty();
void break_promise(future_state_base& state) noexcept;
/// The state was already complete: an error, unless the consumer has cancelled.
inline void completed_late(future_state_base& state) {
  if (!state.absorb_completion()) throw_promise_satisfied();
}
}  // namespace detail

/// Completes its future exactly once. If the promise is destroyed or assigned to before that, the future fails with
/// errc::promise_broken. Several threads may call the completing members concurrently: one wins. A thread that observes
/// the future as complete may destroy the promise, even if the call that completed it has not returned yet. Not
/// copyable. Every member throws errc::no_state on a moved-from promise.
///
/// If the consumer has cancelled the future, the first set_value() or set_exception() drops its argument without an
/// error.
template <class T>
class promise {
 public:
  using value_type = T;

  promise() : state_(detail::ref_ptr<detail::future_state<T>>::adopt(new detail::future_state<T>)) {}
  promise(promise&&) noexcept = default;
  promise& operator=(promise&& other) noexcept {
    if (this != &other) {
      abandon();
      state_ = std::move(other.state_);
    }
    return *this;
  }
  promise(const promise&) = delete;
  promise& operator=(const promise&) = delete;
  ~promise() { abandon(); }

  /// May be called several times: all handles share the result.
  future<T> get_future() const {
    state();
    return future<T>(state_);
  }

  /// Completes with a value constructed from `args` (none for void). Throws errc::promise_satisfied if already
  /// completed.
  template <class... A>
    requires std::is_constructible_v<detail::stored_t<T>, A...>
  void set_value(A&&... args) {
    const auto held = hold();
    if (!held->try_set_value(std::forward<A>(args)...)) detail::completed_late(*held);
  }
  /// Completes with an error. Throws errc::promise_satisfied if already completed.
  void set_exception(std::exception_ptr error) {
    const auto held = hold();
    if (!held->try_set_error(std::move(error))) detail::completed_late(*held);
  }
  /// Like set_value() and set_exception(), but return false if already completed.
  template <class... A>
    requires std::is_constructible_v<detail::stored_t<T>, A...>
  bool try_set_value(A&&... args) {
    return hold()->try_set_value(std::forward<A>(args)...);
  }
  bool try_set_exception(std::exception_ptr error) { return hold()->try_set_error(std::move(error)); }

  /// Whether the consumer has cancelled; the producer may then stop early.
  [[nodiscard]] bool cancelled() const { return state().cancelled(); }

 private:
  detail::future_state<T>& state() const {
    if (!state_) detail::throw_promise_empty();
    return *state_;
  }
  // A waiting thread may wake up and destroy the promise while the completing member is still running.
  detail::ref_ptr<detail::future_state<T>> hold() const {
    state();
    return state_;
  }
  void abandon() noexcept {
    if (state_ && !state_->ready()) detail::break_promise(*state_);
  }

  detail::ref_ptr<detail::future_state<T>> state_;
};

/// Returns a future that is already complete.
template <class T>
future<std::decay_t<T>> make_ready_future(T&& value) {
  auto state = detail::ref_ptr<detail::future_state<std::decay_t<T>>>::adopt(new detail::future_state<std::decay_t<T>>);
  state->try_set_value(std::forward<T>(value));
  return future<std::decay_t<T>>(std::move(state));
}
inline future<void> make_ready_future() {
  auto state = detail::ref_ptr<detail::future_state<void>>::adopt(new detail::future_state<void>);
  state->try_set_value();
  return future<void>(std::move(state));
}
/// Returns a future that has already failed.
template <class T>
future<T> make_failed_future(std::exception_ptr error) {
  auto state = detail::ref_ptr<detail::future_state<T>>::adopt(new detail::future_state<T>);
  state->try_set_error(std::move(error));
  return future<T>(std::move(state));
}
template <class T, class E>
  requires std::derived_from<std::remove_cvref_t<E>, std::exception>
future<T> make_failed_future(E&& error) {
  return make_failed_future<T>(std::make_exception_ptr(std::forward<E>(error)));
}

}  // namespace ferry::inline v0

#pragma once

// promise<T>: the producing end of a future<T>, for results made by hand.

#include <ferry/rpc/future.hpp>

namespace ferry::inline v0 {

namespace detail {
[[noreturn]] void throw_promise_satisfied();
[[noreturn]] void throw_promise_empty();
void break_promise(future_state_base& state) noexcept;
/// The producer came second: an error, unless the consumer had cancelled.
inline void completed_late(future_state_base& state) {
  if (!state.absorb_completion()) throw_promise_satisfied();
}
}  // namespace detail

/// Completes its future exactly once. Destroyed (or assigned to) before that, the future fails with
/// errc::promise_broken. The completing members may be called from several threads at once: one wins. A thread that sees the
/// future complete may destroy the promise, even if the call that completed it has not returned yet. Not copyable.
/// Every member throws errc::no_state on a promise that was moved from.
///
/// If the consumer cancels the future, set_value() and set_exception() drop their argument in silence, once.
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

  /// Completes with a value made from `args` (nothing for void). Throws errc::promise_satisfied if already completed.
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
  /// The same, but false if already completed.
  template <class... A>
    requires std::is_constructible_v<detail::stored_t<T>, A...>
  bool try_set_value(A&&... args) {
    return hold()->try_set_value(std::forward<A>(args)...);
  }
  bool try_set_exception(std::exception_ptr error) { return hold()->try_set_error(std::move(error)); }

  /// Whether the consumer has cancelled, so that the producer may stop early.
  [[nodiscard]] bool cancelled() const { return state().cancelled(); }

 private:
  detail::future_state<T>& state() const {
    if (!state_) detail::throw_promise_empty();
    return *state_;
  }
  // Who waits may wake up and destroy the promise while the completing member is still at work.
  detail::ref_ptr<detail::future_state<T>> hold() const {
    state();
    return state_;
  }
  void abandon() noexcept {
    if (state_ && !state_->ready()) detail::break_promise(*state_);
  }

  detail::ref_ptr<detail::future_state<T>> state_;
};

/// A future that is complete from the start.
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
/// A future that has failed from the start.
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

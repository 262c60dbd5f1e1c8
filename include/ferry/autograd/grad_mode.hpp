#pragma once

// Whether operations on the calling thread enter the graph of gradients.

namespace ferry::inline v0 {

/// True unless a no_grad is in force on the calling thread.
[[nodiscard]] bool grad_enabled() noexcept;

namespace detail {

/// Returns what was in force.
bool set_grad_enabled(bool now) noexcept;

template <bool Enabled>
class grad_mode_scope {
 public:
  grad_mode_scope() noexcept : former_(set_grad_enabled(Enabled)) {}
  ~grad_mode_scope() { set_grad_enabled(former_); }
  grad_mode_scope(const grad_mode_scope&) = delete;
  grad_mode_scope& operator=(const grad_mode_scope&) = delete;

 private:
  bool former_;
};

}  // namespace detail

/// During its lifetime, operations of the calling thread do not enter the graph: their results require no gradient, and
/// parameters may be written in place. Must be destroyed on the thread that made it, in the reverse order of others: not
/// held across a suspension of a coroutine.
using no_grad = detail::grad_mode_scope<false>;
/// Undoes a no_grad further out, during its lifetime; the same rules.
using enable_grad = detail::grad_mode_scope<true>;

}  // namespace ferry::inline v0

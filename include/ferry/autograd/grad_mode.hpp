#pragma once

// Whether operations on the calling thread enter the graph of gradients.

namespace ferry::inline v0 {

/// True unless a no_grad is in force on the calling thread.
[[nodiscard]] bool grad_enabled() noexcept;

/// During its lifetime, operations of the calling thread do not enter the graph: their results require no gradient, and
/// parameters may be written in place. Must be destroyed on the thread that made it, in the reverse order of others: not
/// held across a suspension of a coroutine.
class no_grad {
 public:
  no_grad() noexcept;
  ~no_grad();
  no_grad(const no_grad&) = delete;
  no_grad& operator=(const no_grad&) = delete;

 private:
  bool former_;
};

/// Undoes a no_grad further out, during its lifetime; the same rules.
class enable_grad {
 public:
  enable_grad() noexcept;
  ~enable_grad();
  enable_grad(const enable_grad&) = delete;
  enable_grad& operator=(const enable_grad&) = delete;

 private:
  bool former_;
};

}  // namespace ferry::inline v0

#pragma once

// What user code does to the library's threads with pthread_exit: the C library unwinds the stack, catch blocks (...)
// are entered, and it ends the process when one of them is left.

#include <ferry/base/error.hpp>

namespace ferry::inline v0::detail {

/// The error of what ended its thread. Calls of the library word it again, with the name of the method.
struct thread_exit_error final : remote_error {
  explicit thread_exit_error(const std::string& text) : remote_error("pthread_exit", text) {}
};

/// For catch blocks: whether the thread is being ended by pthread_exit or a cancellation. If so, the block may be left
/// like any other, and the thread goes on: it must end soon, because the C library has marked it as ending.
bool hold_thread_exit() noexcept;
/// Whether hold_thread_exit() was true on this thread.
[[nodiscard]] bool thread_exit_was_held() noexcept;

}  // namespace ferry::inline v0::detail

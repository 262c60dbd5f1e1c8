#include <ferry/rpc/task.hpp>

#include <string>

#include "thread_values.hpp"

namespace ferry::inline v0::detail {

// A coroutine resumes the next one by storing it in the thread's state and returning to the loop. The symmetric transfer
// of the language would do the same with less code, but compilers promise it only when they optimise, and a loop over
// tasks would overflow the stack of a debug or sanitizer build.
void run_coroutine(std::coroutine_handle<> handle) noexcept {
  thread_state& thread = find_current_thread();
  void* const outer = thread.coroutine;
  const std::coroutine_handle<> next_of_outer = thread.next;
  const values_restorer values(thread);  // those of a coroutine go no further than its suspension
  while (handle) {
    thread.coroutine = handle.address();
    thread.next = nullptr;
    handle.resume();
    handle = thread.next;
  }
  thread.coroutine = outer;
  thread.next = next_of_outer;
}

void transfer(std::coroutine_handle<> from, std::coroutine_handle<> to) noexcept {
  // `from` may have been resumed from outside of the loop (an awaitable that is not ours, another coroutine
  // type): then what is left there would never be resumed.
  if (current_thread.coroutine == from.address()) {
    current_thread.next = to;
  } else {
    run_coroutine(to);
  }
}

void start_coroutine(std::coroutine_handle<> handle) {
  const captured_context here = captured_context::current();
  const context_scope scope(here);
  run_coroutine(handle);
}

void throw_task_empty(const char* operation) {
  throw_error(errc::no_state, std::string(operation) + " on an empty task, or on one that was already started");
}

}  // namespace ferry::inline v0::detail

#include <ferry/rpc/task.hpp>

#include <string>

#include "thread_values.hpp"

namespace ferry::inline v0::detail {
namespace {

// A coroutine resumes the next one by storing it here and returning to the loop below. The symmetric transfer of
// the language would do the same with less code, but compilers promise it only when they optimise, and a loop over
// tasks would overflow the stack of a debug or sanitizer build.
struct coroutine_loop {
  void* running = nullptr;
  std::coroutine_handle<> next;
};
thread_local constinit coroutine_loop loop;

}  // namespace

void run_coroutine(std::coroutine_handle<> handle) noexcept {
  const coroutine_loop outer = loop;
  const values_restorer values;  // those of a coroutine go no further than its suspension
  while (handle) {
    loop = {handle.address(), nullptr};
    handle.resume();
    handle = loop.next;
  }
  loop = outer;
}

void transfer(std::coroutine_handle<> from, std::coroutine_handle<> to) noexcept {
  // `from` may have been resumed from outside of the loop (an awaitable that is not ours, another coroutine
  // type): then what is left there would never be resumed.
  if (loop.running == from.address()) {
    loop.next = to;
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

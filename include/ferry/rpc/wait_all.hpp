#pragma once

// Waiting for every call that a piece of code makes.

#include <concepts>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/rpc/call.hpp>

namespace ferry::inline v0 {

namespace detail {

/// The asynchronous calls that the current thread makes from its construction to stop(). Lives on the stack of that
/// thread; the innermost one gets the calls.
class call_record {
 public:
  call_record() noexcept;
  ~call_record() { stop(); }
  call_record(const call_record&) = delete;
  call_record& operator=(const call_record&) = delete;

  void stop() noexcept;
  /// Blocks until all are complete, also when some have failed; then throws the first error in the order of the calls.
  void wait() const;
  /// Blocks as wait() does and drops the errors.
  void wait_quietly() const noexcept;

 private:
  friend void record_call(future_state_base& call);
  std::vector<ref_ptr<future_state_base>> calls_;
  call_record* outer_;
  bool recording_ = true;
};

}  // namespace detail

/// Runs `body` on this thread, then blocks until every call that it made with rpc_async here is complete, those of
/// functions that it called included, and returns what it returned. Throws the first of their errors, in the order of the
/// calls, once all are complete; if the body throws, its exception, likewise after all are complete. Not
/// waited for: one-way calls, and calls made on other threads (handlers, continuations, coroutines that have moved).
/// Scopes may nest: the inner one waits for its own. Inside a handler the worker runs others meanwhile.
template <std::invocable Body>
auto wait_all(Body&& body) -> std::invoke_result_t<Body> {
  detail::call_record record;
  const auto finish = [&] {
    record.stop();
    record.wait();
  };
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      std::forward<Body>(body)();
      finish();
      return;
    } else {
      std::invoke_result_t<Body> result = std::forward<Body>(body)();
      finish();
      return static_cast<std::invoke_result_t<Body>&&>(result);
    }
  } catch (...) {
    record.stop();
    record.wait_quietly();
    throw;
  }
}

}  // namespace ferry::inline v0

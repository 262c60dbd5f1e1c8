#pragma once

// wait_all(body): waits for all calls that a function object makes.

#include <concepts>
#include <exception>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/rpc/call.hpp>

namespace ferry::inline v0 {

namespace detail {

/// Records the asynchronous calls that the current thread makes between construction and stop(). Lives on the stack of
/// that thread; the innermost record receives the calls.
class call_record {
 public:
  call_record() noexcept;
  ~call_record() { stop(); }
  call_record(const call_record&) = delete;
  call_record& operator=(const call_record&) = delete;

  void stop() noexcept;
  /// Blocks until all are complete, even if some have failed; then throws the first error in the order of the calls.
  void wait() const;
  /// Like wait(), but drops the errors.
  void wait_quietly() const noexcept;

 private:
  friend void record_call(future_state_base& call);
  std::vector<ref_ptr<future_state_base>> calls_;
  call_record* outer_;
  bool recording_ = true;
};

}  // namespace detail

/// Runs `body` on this thread, blocks until every call that it made with rpc_async on this thread (directly or in
/// functions that it called) is complete, and returns the result of `body`. Once all calls are complete, throws the
/// exception of `body` if it threw, else the first error in the order of the calls. Not waited for: one-way calls, and
/// calls made on other threads (handlers, continuations, coroutines that resumed elsewhere). Scopes may nest: the inner
/// one waits for its own calls. While a handler waits, the worker runs other handlers.
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

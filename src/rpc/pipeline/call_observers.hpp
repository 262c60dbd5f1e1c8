#pragma once

// Who watches the calls of a worker: the flight recorder, the trace sink.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <ferry/backend/agent.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

class worker_core;
struct method_entry;

/// A moment in the life of a call, at its caller or at its callee.
enum class call_moment : std::uint8_t {
  // At the caller, in this order; one of the middle four.
  started,    ///< taken by the agent
  replied,    ///< a reply has arrived; `code`: that of a failure or an exception
  failed,     ///< it ends without a reply: `code`, `text`
  timed_out,  ///< the same
  cancelled,  ///< the same
  ended,      ///< its result has been passed on
  one_way_sent,
  // At the callee.
  received,
  handler_begun,      ///< `queued`: it had to wait for its turn
  handler_suspended,  ///< the handler has returned a future or a task that is not ready
  handler_ended,      ///< the thread is done with it; the answer may be pending
  answered,           ///< with a value
  refused,            ///< with an error: `code`
  done,               ///< a one-way request
};

struct call_event {
  call_moment what{};
  clock::time_point at = {};  ///< when it happened; unset: now
  worker_id peer;
  std::uint64_t call = 0;
  std::uint64_t method = 0;
  const method_entry* entry = nullptr;  ///< null: the worker has no such method
  std::uint64_t bytes = 0;              ///< of the message
  errc code{};
  bool queued = false;
  std::string_view text = {};
};

/// Sees the calls that a worker makes and serves. Called on the threads of the calls: must be quick and not block.
class call_observer {
 public:
  virtual void on_call(const worker_core& worker, const call_event& event) noexcept = 0;

 protected:
  ~call_observer() = default;
};

/// The observers of one worker, in order. Fixed once the worker has started.
class call_observers {
 public:
  void add(call_observer& observer) noexcept { list_[count_++] = &observer; }
  void tell(const worker_core& worker, const call_event& event) const noexcept {
    for (std::size_t i = 0; i != count_; ++i) list_[i]->on_call(worker, event);
  }

 private:
  std::array<call_observer*, 4> list_{};
  std::size_t count_ = 0;
};

/// Passes calls to the process's trace sink (base/log.hpp), if there is one.
class trace_observer final : public call_observer {
 public:
  void on_call(const worker_core& worker, const call_event& event) noexcept override;
};

}  // namespace ferry::inline v0::detail

#pragma once

// Who watches the calls of a worker: the flight recorder, the trace sink, metrics.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

#include <ferry/backend/agent.hpp>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/base/time.hpp>

#include "flight_time.hpp"

namespace ferry::inline v0::detail {

class incoming_call;
class worker_core;
struct call_facts;
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
  not_sent,  ///< it was not taken, and has ended with that: `code`
  // At the callee.
  received,
  handler_begun,       ///< at once
  handler_begun_late,  ///< the same, after it had to wait for its turn
  handler_suspended,   ///< the handler has returned a future or a task that is not ready
  handler_ended,       ///< the thread is done with it; the answer may be pending
  answered,            ///< with a value
  refused,             ///< with an error: `code`
  error_sent,          ///< the message with that error is sent: `bytes`
  done,                ///< a one-way request
};

/// The clock, read by the first that asks.
class clock_of_moment {
 public:
  [[nodiscard]] flight_time now() const noexcept {
    if (!read_) {
      now_ = flight_time::now();
      read_ = true;
    }
    return now_;
  }

 private:
  mutable flight_time now_;
  mutable bool read_ = false;
};

struct call_event {
  call_moment what{};
  clock::time_point at = {};  ///< when it happened; unset: now (see when())
  worker_id peer;
  std::uint64_t call = 0;
  std::uint64_t method = 0;
  const method_entry* entry = nullptr;  ///< null: the worker has no such method
  std::uint64_t bytes = 0;              ///< of the message
  errc code{};
  std::string_view text = {};

  // At the caller.
  const call_facts* facts = nullptr;
  clock::time_point made = {};  ///< when the call was made; unset for one that was not sent
  // At the callee.
  const incoming_call* request = nullptr;
  clock::time_point begun = {};  ///< answered, refused, done: when its handler began; unset if none did
  bool told_before = false;      ///< the same: that the request has ended was told before, as another of these three

  clock_of_moment clock_here = {};
  /// When it happened. All observers share one reading of the clock, which costs more than what they do with it.
  [[nodiscard]] flight_time when() const noexcept {
    return at == clock::time_point{} ? clock_here.now() : flight_time(at);
  }
};

/// A set of moments.
class call_moments {
 public:
  constexpr call_moments() = default;
  constexpr call_moments(std::initializer_list<call_moment> all) {
    for (const call_moment each : all) bits_ |= bit(each);
  }
  constexpr call_moments& operator|=(const call_moments& more) noexcept {
    bits_ |= more.bits_;
    return *this;
  }
  [[nodiscard]] constexpr bool contains(call_moment which) const noexcept { return (bits_ & bit(which)) != 0; }

 private:
  static constexpr std::uint32_t bit(call_moment which) noexcept { return 1U << static_cast<unsigned>(which); }
  std::uint32_t bits_ = 0;
};

/// Sees the calls that a worker makes and serves. Called on the threads of the calls: must be quick and not block.
class call_observer {
 public:
  /// What it sees. Other moments cost nothing.
  [[nodiscard]] virtual call_moments moments() const noexcept = 0;
  /// Whether it sees them only while the process has a trace sink.
  [[nodiscard]] virtual bool only_traced() const noexcept { return false; }
  /// Called with the moments that it sees; perhaps with others.
  virtual void on_call(const worker_core& worker, const call_event& event) noexcept = 0;
  /// A connection was opened, accepted or lost, or a reply came late. Told to the one that is switched on.
  virtual void on_connection(const link_event& event) noexcept { (void)event; }

 protected:
  ~call_observer() = default;
};

/// The observers of one worker. Fixed once the worker has started, but for one that may be switched on and off.
class call_observers {
 public:
  /// What the one that may be switched sees. Other moments cost nothing while it is on, either.
  static constexpr call_moments of_switched = {
      call_moment::started,   call_moment::replied,      call_moment::failed,     call_moment::timed_out,
      call_moment::cancelled, call_moment::one_way_sent, call_moment::not_sent,   call_moment::received,
      call_moment::answered,  call_moment::refused,      call_moment::error_sent, call_moment::done,
  };

  void add(call_observer& observer) noexcept { (observer.only_traced() ? traced_ : always_).add(observer); }
  /// Null: off. An observer that is switched off may be told of events a moment longer: it lives as long as the worker.
  void switch_to(call_observer* observer) noexcept { switched_.store(observer, std::memory_order_release); }
  /// Whether one is switched on, so that times are wanted that others do without.
  [[nodiscard]] bool is_switched_on() const noexcept { return switched_.load(std::memory_order_relaxed) != nullptr; }
  /// Whether any of them sees this moment now.
  [[nodiscard]] bool see(call_moment which) const noexcept {
    return always_.moments.contains(which) || (traced_.moments.contains(which) && trace_enabled());
  }
  void tell(const worker_core& worker, const call_event& event) const noexcept {
    if (always_.moments.contains(event.what)) always_.tell(worker, event);
    if (of_switched.contains(event.what)) {
      if (call_observer* more = switched_.load(std::memory_order_acquire)) more->on_call(worker, event);
    }
    if (traced_.moments.contains(event.what) && trace_enabled()) traced_.tell(worker, event);
  }
  void tell_connection(const link_event& event) const noexcept {
    if (call_observer* more = switched_.load(std::memory_order_acquire)) more->on_connection(event);
  }

 private:
  struct group {
    call_moments moments;
    std::size_t count = 0;
    std::array<call_observer*, 2> list{};

    void add(call_observer& observer) noexcept {
      list[count++] = &observer;
      moments |= observer.moments();
    }
    void tell(const worker_core& worker, const call_event& event) const noexcept {
      for (std::size_t i = 0; i != count; ++i) list[i]->on_call(worker, event);
    }
  };
  group always_;
  group traced_;
  std::atomic<call_observer*> switched_{nullptr};
};

/// Passes calls to the process's trace sink (base/log.hpp), if there is one.
class trace_observer final : public call_observer {
 public:
  [[nodiscard]] call_moments moments() const noexcept override;
  [[nodiscard]] bool only_traced() const noexcept override { return true; }
  void on_call(const worker_core& worker, const call_event& event) noexcept override;
};

}  // namespace ferry::inline v0::detail

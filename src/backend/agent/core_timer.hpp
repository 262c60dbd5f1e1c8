#pragma once

#include <memory>

#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

class native_core;

/// A deferred action of a worker: one timer at a time, which keeps the worker alive. Guarded by a mutex of the worker.
class core_timer {
 public:
  /// The action must call claim() first, under the mutex again.
  using action = void (native_core::*)(const work* fired) noexcept;

  /// Replaces the timer that is set, if any. Throws what the reactor throws; then the previous one stays.
  void set(reactor& loop, deadline at, std::shared_ptr<native_core> core, action act);
  void cancel(reactor& loop) noexcept;
  /// Whether the fired timer is the one that was set last, and was not cancelled while it was on its way to a thread.
  [[nodiscard]] bool claim(const work* fired) noexcept;
  [[nodiscard]] bool is_set() const noexcept { return item_ != nullptr; }

 private:
  struct item;
  timer_id timer_ = timer_id::none;
  item* item_ = nullptr;  // owned by the reactor
};

}  // namespace ferry::inline v0::detail

#pragma once

#include <memory>
#include <utility>

#include <ferry/transport/reactor.hpp>

namespace ferry::inline v0::detail {

/// A deferred action: one timer at a time, which keeps its owner alive. Guarded by a mutex of the owner.
class kept_timer {
 public:
  /// Calls owner->*Action(fired) at `at`, which must call claim(fired) first, under the mutex again. Replaces the timer
  /// that is set, if any. Throws what the reactor throws; then the previous one stays.
  template <auto Action, class Owner>
  void set(reactor& loop, deadline at, std::shared_ptr<Owner> owner) {
    set_for(loop, at, std::move(owner),
            [](void* whom, const work* fired) noexcept { (static_cast<Owner*>(whom)->*Action)(fired); });
  }
  void cancel(reactor& loop) noexcept;
  /// Whether the fired timer is the one that was set last, and was not cancelled while it was on its way to a thread.
  [[nodiscard]] bool claim(const work* fired) noexcept;
  [[nodiscard]] bool is_set() const noexcept { return item_ != nullptr; }

 private:
  using action = void (*)(void* owner, const work* fired) noexcept;
  struct item;
  void set_for(reactor& loop, deadline at, std::shared_ptr<void> owner, action act);

  timer_id timer_ = timer_id::none;
  item* item_ = nullptr;  // owned by the reactor
};

}  // namespace ferry::inline v0::detail

#pragma once

// When a worker sends heartbeats and checks the leases of others.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "../kept_timer.hpp"
#include "../links/liveness.hpp"
#include "../lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// Ticks as long as a tick, or keep_ticking() meanwhile, wants another one. Thread-safe.
class heartbeat_clock {
 public:
  /// What a tick is to do.
  struct tick {
    clock::time_point now;
    clock::time_point at;  ///< when it was set for, or now if it is so late that the next one would follow at once
    std::chrono::nanoseconds late_by;  ///< after the time it was set for
    bool stalled;                      ///< the worker was suspended, or had no CPU time: `late_by` is no silence
    bool beat;                         ///< heartbeats are due
  };

  /// `on_tick` is called without a lock on a thread of the reactor. `owner`: what this clock is part of.
  heartbeat_clock(lease_rules rules, std::shared_ptr<reactor> threads, std::function<std::shared_ptr<void>()> owner,
                  std::function<void(const tick&)> on_tick)
      : rules_(rules), threads_(std::move(threads)), owner_(std::move(owner)), on_tick_(std::move(on_tick)) {}
  heartbeat_clock(const heartbeat_clock&) = delete;
  heartbeat_clock& operator=(const heartbeat_clock&) = delete;

  /// Ensures that a tick is scheduled, at `at` if there is none yet.
  void keep_ticking(clock::time_point at) noexcept;
  /// Of a tick: whether keep_ticking() was called since it began. The next one may be scheduled now.
  [[nodiscard]] bool end_tick() noexcept;
  /// There are no more ticks.
  void stop() noexcept;

 private:
  void fire(const work* fired) noexcept;

  const lease_rules rules_;
  const std::shared_ptr<reactor> threads_;
  const std::function<std::shared_ptr<void>()> owner_;
  const std::function<void(const tick&)> on_tick_;
  ranked_mutex mutex_{rank_of_timers};  // guards what follows
  bool stopped_ = false;
  clock::time_point next_beat_{};
  bool ticking_ = false;
  bool wanted_ = false;
  clock::time_point next_tick_{};
  kept_timer timer_;
};

}  // namespace ferry::inline v0::detail

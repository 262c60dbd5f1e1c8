#include "heartbeat_clock.hpp"

#include <string>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds beat_tolerance{1};  // the resolution of timers
constexpr int late_part = 4;                            // of the interval: a tick that is later begins a new series

}  // namespace

void heartbeat_clock::keep_ticking(clock::time_point at) noexcept {
  const std::lock_guard lock(mutex_);
  wanted_ = true;
  if (ticking_ || stopped_) return;
  try {
    timer_.set<&heartbeat_clock::fire>(*threads_, deadline(at), std::shared_ptr<heartbeat_clock>(owner_(), this));
    next_tick_ = at;
    ticking_ = true;
  } catch (const std::exception& e) {
    log(log_level::error, std::string("no timer for heartbeats: ") + e.what());
  }
}

void heartbeat_clock::fire(const work* fired) noexcept {
  tick due{clock::now(), {}, {}, false, false};
  {
    const std::lock_guard lock(mutex_);
    if (!timer_.claim(fired)) return;
    wanted_ = false;
    due.stalled = was_stalled(next_tick_, due.now, rules_);
    due.late_by = due.now - next_tick_;
    due.at = due.late_by > rules_.interval / late_part ? due.now : next_tick_;
    due.beat = due.now + beat_tolerance >= next_beat_;
    if (due.beat) next_beat_ = due.at + rules_.interval;
  }
  on_tick_(due);
}

bool heartbeat_clock::end_tick() noexcept {
  const std::lock_guard lock(mutex_);
  ticking_ = false;
  return wanted_;
}

void heartbeat_clock::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  timer_.cancel(*threads_);
}

}  // namespace ferry::inline v0::detail

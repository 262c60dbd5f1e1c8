#include "link_checks.hpp"

#include <algorithm>
#include <chrono>
#include <new>
#include <string>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds deadline_resolution{1};
constexpr std::chrono::milliseconds look_pause{10};

}  // namespace

// One timer serves all calls: it is set for the earliest deadline and then checks every pending call. Calls with equal
// timeouts, the usual case, cost nothing but the comparison below.
void link_checks::check_deadlines_at(deadline at) noexcept {
  const std::lock_guard lock(mutex_);
  if (next_check_ <= at || stopped_) return;
  try {
    check_timer_.set<&link_checks::check_deadlines>(*threads_, at, kept());
    next_check_ = at;
  } catch (const std::exception& e) {
    log(log_level::error, std::string("no timer for the deadlines of calls: ") + e.what());
  }
}

void link_checks::check_deadlines(const work* fired) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!check_timer_.claim(fired)) return;
    next_check_ = {};
  }
  const auto now = clock::now();
  deadline earliest;
  try {
    for (const auto& link : links_.all().out) earliest = std::min(earliest, link->expire(now));
  } catch (const std::bad_alloc&) {
    earliest = deadline(now);
  }
  if (!earliest.is_never()) check_deadlines_at(std::max(earliest, deadline(now + deadline_resolution)));
}

// Notifying at the end of each call would have to visit every link, so waiting links poll instead.
void link_checks::look_again_soon() noexcept {
  const std::lock_guard lock(mutex_);
  if (look_timer_.is_set() || stopped_) return;
  try {
    look_timer_.set<&link_checks::look_again>(*threads_, deadline(clock::now() + look_pause), kept());
  } catch (const std::exception& e) {
    log(log_level::error, std::string("no timer to check waiting connections: ") + e.what());
  }
}

void link_checks::look_again(const work* fired) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!look_timer_.claim(fired)) return;  // before the check: a link that still has to wait requests another one
  }
  try {
    const link_list waiting = links_.waiting();
    for (const auto& link : waiting.out) link->look_again();
    for (const auto& link : waiting.in) link->look_again();
  } catch (const std::bad_alloc&) {
    look_again_soon();
  }
}

void link_checks::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  check_timer_.cancel(*threads_);
  look_timer_.cancel(*threads_);
}

}  // namespace ferry::inline v0::detail

// Deferred checks of a worker: deadlines of calls, and connections that wait for capacity that other links may release.
// Heartbeats have a timer of their own (failure.cpp).

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds deadline_resolution{1};
constexpr std::chrono::milliseconds look_pause{10};

}  // namespace

// ---------------------------------------------------------------- deadlines

// One timer serves all calls: it is set for the earliest deadline and then checks every pending call. Calls with equal
// timeouts, the usual case, cost nothing but the comparison below.
void native_core::check_deadlines_at(deadline at) noexcept {
  const std::lock_guard lock(deadlines_mutex_);
  if (next_check_ <= at || closing_.load()) return;
  try {
    check_timer_.set(*reactor_, at, shared_from_this(), &native_core::check_deadlines);
    next_check_ = at;
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: no timer for the deadlines of calls: {}", self_.name(), e.what()));
  }
}

void native_core::check_deadlines(const work* fired) noexcept {
  {
    const std::lock_guard lock(deadlines_mutex_);
    if (!check_timer_.claim(fired)) return;
    next_check_ = {};
  }
  const auto now = clock::now();
  deadline earliest;
  try {
    std::vector<std::shared_ptr<outgoing_link>> links;
    {
      const std::lock_guard lock(links_mutex_);
      for (const auto& [key, link] : outgoing_) links.push_back(link);
    }
    for (const auto& link : links) earliest = std::min(earliest, link->expire(now));
  } catch (const std::bad_alloc&) {
    earliest = deadline(now);
  }
  if (!earliest.is_never()) check_deadlines_at(std::max(earliest, deadline(now + deadline_resolution)));
}

// ---------------------------------------------------------------- bounds shared by links

// Notifying at the end of each call would have to visit every link, so waiting links poll instead.
void native_core::look_again_soon() noexcept {
  const std::lock_guard lock(looks_mutex_);
  if (look_timer_.is_set() || closing_.load()) return;
  try {
    look_timer_.set(*reactor_, deadline(clock::now() + look_pause), shared_from_this(), &native_core::look_again);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: no timer to check waiting connections: {}", self_.name(), e.what()));
  }
}

void native_core::look_again(const work* fired) noexcept {
  {
    const std::lock_guard lock(looks_mutex_);
    if (!look_timer_.claim(fired)) return;  // before the check: a link that still has to wait requests another one
  }
  try {
    std::vector<std::shared_ptr<outgoing_link>> out;
    std::vector<std::shared_ptr<incoming_link>> in;
    {
      const std::lock_guard lock(links_mutex_);
      for (const auto& [key, link] : outgoing_) {
        if (link->waits_for_others()) out.push_back(link);
      }
      for (const auto& [key, link] : incoming_) {
        if (link->waits_for_others()) in.push_back(link);
      }
    }
    for (const auto& link : out) link->look_again();
    for (const auto& link : in) link->look_again();
  } catch (const std::bad_alloc&) {
    look_again_soon();
  }
}

// ---------------------------------------------------------------- the end

void native_core::stop_timers() noexcept {
  {
    const std::lock_guard lock(deadlines_mutex_);
    check_timer_.cancel(*reactor_);
  }
  {
    const std::lock_guard lock(looks_mutex_);
    look_timer_.cancel(*reactor_);
  }
  const std::lock_guard lock(ticks_mutex_);
  tick_timer_.cancel(*reactor_);
}

}  // namespace ferry::inline v0::detail

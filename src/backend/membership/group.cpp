// What both kinds of groups have in common: agreement on the parameters, listening, and becoming idle before leaving.
// Each group has its own part of the store, where its members agree on
//
//   kind     "static <world size>, heartbeats ..., lease ...", or "dynamic, ...": all must say the same
//   group    the key that identifies connections of this group

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ferry/base/log.hpp>

#include "../agent/native_agent.hpp"

namespace ferry::inline v0::detail {

void native_core::join() {
  const auto until = deadline::after(init_timeout_);
  if (world_size_ == 0) {
    form_dynamic(until);
  } else {
    form_static(until);
  }
}

void native_core::leave_together(deadline until) {
  if (world_size_ == 0) {
    leave_dynamic(until, 1);
  } else {
    leave_static(until);
  }
}

void native_core::leave(deadline until) {
  if (world_size_ == 0) return leave_dynamic(until, 2);
  // The others receive goodbyes on its connections, or find no listener at its address.
  wait_until_quiet(until, 2);
  settle_loose_ends(until);
}

void native_core::settle_loose_ends(deadline until) {
  request_handler& above = *handler_.load();
  if (above.loose_ends() != 0) above.on_group_quiet(until, true);
}

void native_core::agree_on_group(deadline until) {
  const auto text = [](timeout value) {
    return value.is_never() ? std::string("never")
                            : fmt::format("{} ms", std::chrono::duration<double, std::milli>(value.duration()).count());
  };
  const std::string kind = fmt::format(
      "{}, heartbeats {}, lease {}", world_size_ == 0 ? std::string("dynamic") : fmt::format("static {}", world_size_),
      text(options_.heartbeat_interval), text(options_.lease));
  if (const std::string there = store_->compare_set("kind", "", kind, until); there != kind) {
    throw_error(
        errc::group_mismatch,
        fmt::format(
            "{} is configured for a group that is '{}', but another member for '{}'; every worker must have the same "
            "world_size, heartbeat_interval and lease. If no worker of that group runs any more (it was killed), "
            "use another path or port, or a store that was started afresh",
            to_string(self_), kind, there));
  }
  const std::string proposal = fmt::format("{:016x}", incarnation_id::random().value);
  group_ = store_->compare_set("group", "", proposal, until);
}

void native_core::listen() {
  advertised_.clear();
  for (auto& own : transports_) {
    try {
      auto addresses =
          own.transport->listen(group_, self_.name(), store_->local_address(), options_.transport, shared_from_this());
      advertised_.insert(advertised_.end(), addresses.begin(), addresses.end());
      own.listening = true;
    } catch (const error& e) {
      // These report that the user's configuration is not possible.
      if (e.kind() == errc::address_in_use || e.kind() == errc::bad_address || e.kind() == errc::invalid_argument ||
          e.kind() == errc::duplicate_name || e.kind() == errc::authentication_required)
        throw;
      log(log_level::info, fmt::format("{}: transport {} cannot listen: {}", self_.name(), own.name, e.what()));
    }
  }
  if (advertised_.empty())
    throw_error(errc::no_route, to_string(self_) + ": no transport can listen for other workers");
  log(log_level::info, fmt::format("{} listens on {}", to_string(self_), fmt::join(advertised_, ", ")));
}

void native_core::stop_listening() noexcept {
  for (auto& own : transports_) {
    if (std::exchange(own.listening, false)) own.transport->unlisten(group_, self_.name());
  }
}

// ---------------------------------------------------------------- quiescence

bool native_core::quiet() const noexcept { return flow_.active_calls.load() == 0 && !handler_.load()->busy(); }

// May be called with locks of the rpc layer held; quiet() takes those, so it is never called with quiet_mutex_ held.
void native_core::activity_changed() noexcept {
  if (quiet_waiters_.load() == 0) return;
  std::lock_guard lock(quiet_mutex_);
  ++activity_;
  quiet_changed_.notify_all();
}

// The strongest request wins, and stays: it may arrive before the leave that it interrupts has begun.
void native_core::stop_leaving(bool entirely) noexcept {
  const int stop_level = entirely ? 2 : 1;
  int before = leaving_stopped_.load();
  while (before < stop_level && !leaving_stopped_.compare_exchange_weak(before, stop_level)) {
  }
  {
    std::lock_guard lock(quiet_mutex_);
    ++activity_;
    quiet_changed_.notify_all();
  }
  wake_waiting();
}

void native_core::check_still_leaving(int stop_level) const {
  if (leaving_stopped_.load() >= stop_level) {
    throw_error(errc::shutting_down,
                to_string(self_) + ": the graceful shutdown was interrupted by a shutdown that is not graceful");
  }
}

void native_core::wait_until_quiet(deadline until, int stop_level) {
  quiet_waiters_.fetch_add(1);
  bool in_time = true;
  for (;;) {
    std::uint64_t seen = 0;
    {
      std::lock_guard lock(quiet_mutex_);
      seen = activity_;
    }
    if (leaving_stopped_.load() >= stop_level) {
      quiet_waiters_.fetch_sub(1);
      check_still_leaving(stop_level);
    }
    if (quiet()) break;
    if (!in_time) {
      quiet_waiters_.fetch_sub(1);
      throw_error(
          errc::shutdown_timeout,
          fmt::format(
              "{}: {} calls of this worker are pending, or handlers are running, at the deadline of the shutdown",
              to_string(self_), flow_.active_calls.load()));
    }
    std::unique_lock lock(quiet_mutex_);
    const auto changed = [&] { return activity_ != seen; };
    if (until.is_never()) {
      quiet_changed_.wait(lock, changed);
    } else {
      in_time = quiet_changed_.wait_until(lock, until.at(), changed);
    }
  }
  quiet_waiters_.fetch_sub(1);
}

}  // namespace ferry::inline v0::detail

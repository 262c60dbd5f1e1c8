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
    leave_dynamic(until, leave_interrupt::others);
  } else {
    leave_static(until);
  }
}

void native_core::leave(deadline until) {
  if (world_size_ == 0) return leave_dynamic(until, leave_interrupt::all);
  // The others receive goodbyes on its connections, or find no listener at its address.
  wait_until_quiet(until, leave_interrupt::all);
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
  if (const std::string there = group_store()->compare_set("kind", "", kind, until); there != kind) {
    throw_error(
        errc::group_mismatch,
        fmt::format(
            "{} is configured for a group that is '{}', but another member for '{}'; every worker must have the same "
            "world_size, heartbeat_interval and lease. If no worker of that group runs any more (it was killed), "
            "use another path or port, or a store that was started afresh",
            to_string(self_), kind, there));
  }
  const std::string proposal = fmt::format("{:016x}", incarnation_id::random().value);
  group_ = group_store()->compare_set("group", "", proposal, until);
}

void native_core::listen() {
  advertised_.clear();
  for (auto& own : transports_) {
    try {
      auto addresses = own.transport->listen(group_, self_.name(), group_store()->local_address(), options_.transport,
                                             shared_from_this());
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

void native_core::activity_changed() noexcept { quiet_.changed(); }

void native_core::stop_leaving(bool entirely) noexcept {
  quiet_.interrupt(entirely ? leave_interrupt::all : leave_interrupt::others);
  wake_waiting();
}

void native_core::check_still_leaving(leave_interrupt level) const {
  if (quiet_.interrupted(level)) {
    throw_error(errc::shutting_down,
                to_string(self_) + ": the graceful shutdown was interrupted by a shutdown that is not graceful");
  }
}

void native_core::wait_until_quiet(deadline until, leave_interrupt level) {
  const auto result = quiet_.wait(until, level, [this] { return quiet(); });
  if (result == quiescence::result::quiet) return;
  if (result == quiescence::result::interrupted) check_still_leaving(level);
  throw_error(errc::shutdown_timeout,
              fmt::format("{}: {} calls of this worker are pending, or handlers are running, at the deadline of the "
                          "shutdown",
                          to_string(self_), flow_.active_calls.load()));
}

}  // namespace ferry::inline v0::detail

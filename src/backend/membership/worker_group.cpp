#include "worker_group.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/backend/agent.hpp>
#include <ferry/base/log.hpp>

#include "../../device/start/warm_up.hpp"

namespace ferry::inline v0::detail {

worker_group::worker_group(const group_surroundings& around, std::shared_ptr<store> where)
    : own_(around.own),
      peers_(around.peers),
      flow_(around.flow),
      totals_(around.totals),
      ends_(around.ends),
      devices_(around.devices),
      failures_(around.failures),
      acceptor_(around.acceptor),
      access_(*this, std::make_shared<bounded_store>(std::move(where)), around.own.threads) {}

// ---------------------------------------------------------------- joining

void worker_group::agree_on_group(deadline until) {
  const auto text = [](timeout value) {
    return value.is_never() ? std::string("never")
                            : fmt::format("{} ms", std::chrono::duration<double, std::milli>(value.duration()).count());
  };
  const std::string kind =
      fmt::format("{}, heartbeats {}, lease {}",
                  own_.dynamic() ? std::string("dynamic") : fmt::format("static {}", own_.world_size),
                  text(own_.options.heartbeat_interval), text(own_.options.lease));
  if (const std::string there = group_store()->compare_set("kind", "", kind, until); there != kind) {
    throw_error(
        errc::group_mismatch,
        fmt::format(
            "{} is configured for a group that is '{}', but another member for '{}'; every worker must have the same "
            "world_size, heartbeat_interval and lease. If no worker of that group runs any more (it was killed), "
            "use another path or port, or a store that was started afresh",
            to_string(own_.self), kind, there));
  }
  const std::string proposal = fmt::format("{:016x}", incarnation_id::random().value);
  own_.group = group_store()->compare_set("group", "", proposal, until);
}

void worker_group::warm_up_named_devices() {
  std::vector<device> named = devices_.record()->devices;
  for (const auto& [target, map] : devices_.record()->maps) {
    for (const device_pair& each : map) named.push_back(each.from);
  }
  warm_up_devices(named, to_string(own_.self));
}

std::vector<device> worker_group::devices() const {
  return devices_.in_use(peers_.changes(), [&] {
    std::vector<device_map> back;
    for (const peer* each : peers_.all()) {
      const std::lock_guard lock(each->mutex);
      if (each->present() && each->maps) back.push_back(each->maps->responses);
    }
    return back;
  });
}

void worker_group::warm_up_mapped_devices() {
  if (!devices_.uses_devices()) return;
  try {
    warm_up_devices(devices(), to_string(own_.self));
  } catch (const error& problem) {
    log(log_level::warning, fmt::format("{}: a device that the maps of other workers lead to cannot be used: {}",
                                        to_string(own_.self), problem.message()));
  }
}

void worker_group::listen() {
  ends_.listen(group_store()->local_address(), std::shared_ptr<connection_acceptor>(own_.keep_alive(), &acceptor_));
}

worker_record worker_group::own_record() const {
  worker_record record;
  record.who = own_.self;
  record.incarnation = own_.incarnation;
  record.host = own_.host;
  record.addresses = ends_.advertised();
  record.metadata = own_.metadata;
  record.devices = devices_.record();
  record.limits = limits_to_publish(own_.options.transport.limits);
  record.serves_store = group_store()->serves();
  return record;
}

peer& worker_group::admit(shared_record record) {
  auto maps = devices_.maps_with(record->for_checks());
  return peers_.admit(std::move(record), std::move(maps));
}

// ---------------------------------------------------------------- records of ends

void worker_group::write_later(store_record&& record) noexcept {
  access_.write_later(std::move(record.write), std::move(record.what));
}

void worker_group::publish_loss(const fence_notice& notice, bool contested) noexcept {
  try {
    access_.add_write(
        [this, notice, contested, first = true]() mutable {
          try {
            write_loss(notice, contested);
          } catch (const error&) {
            if (contested && std::exchange(first, false)) failures_.spread(notice);
            throw;
          }
        },
        fmt::format("{} is lost", to_string(notice.who)));
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the group was not told that {} is lost: {}", own_.self.name(),
                                      to_string(notice.who), e.what()));
  }
}

// ---------------------------------------------------------------- becoming idle

bool worker_group::quiet() const noexcept { return flow_.active_calls.load() == 0 && !own_.handler.load()->busy(); }

void worker_group::stop_leaving(bool entirely) noexcept {
  quiet_.interrupt(entirely ? leave_interrupt::all : leave_interrupt::others);
  on_change();
}

void worker_group::check_still_leaving(leave_interrupt level) const {
  if (quiet_.interrupted(level)) {
    throw_error(errc::shutting_down,
                to_string(own_.self) + ": the graceful shutdown was interrupted by a shutdown that is not graceful");
  }
}

void worker_group::wait_until_quiet(deadline until, leave_interrupt level) {
  const auto result = quiet_.wait(until, level, [this] { return quiet(); });
  if (result == quiescence::result::quiet) return;
  if (result == quiescence::result::interrupted) check_still_leaving(level);
  const std::uint64_t calls = flow_.active_calls.load();
  const bool serves = own_.handler.load()->busy();
  const std::string its_calls =
      calls == 0 ? "" : fmt::format("{} of its calls {} pending", calls, calls == 1 ? "is" : "are");
  throw_error(errc::shutdown_timeout, fmt::format("{}: at the deadline of the shutdown {}{}{}", to_string(own_.self),
                                                  its_calls, calls != 0 && serves ? ", and " : "",
                                                  serves       ? "it runs handlers of others' calls, or continuations"
                                                  : calls == 0 ? "the last of its calls and handlers has just ended"
                                                               : ""));
}

void worker_group::settle_loose_ends(deadline until) {
  request_handler& above = *own_.handler.load();
  if (above.loose_ends() != 0) above.on_group_quiet(until, true);
}

}  // namespace ferry::inline v0::detail

#include "native_core.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>
#include <ferry/transport/address.hpp>

#include "../../base/peer_log.hpp"
#include "../../transport/reactor/io_threads.hpp"
#include "../membership/dynamic_group.hpp"
#include "../membership/static_group.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds connect_limit{30};
constexpr std::chrono::seconds close_limit{5};

// The transports' admission options, completed from the worker's configuration, which already includes the environment.
rpc_options with_admission(rpc_options options, const worker_config& config) {
  if (options.secret.empty()) options.secret = config.secret;
  if (options.transport.secret.empty()) options.transport.secret = options.secret;
  options.transport.allow_unauthenticated |=
      options.allow_unauthenticated || config.allow_unauthenticated || !config.serve.everything();
  return options;
}

std::unique_ptr<worker_group> make_group(const group_surroundings& around, std::shared_ptr<store> where) {
  if (around.own.dynamic()) return std::make_unique<dynamic_group>(around, std::move(where));
  return std::make_unique<static_group>(around, std::move(where));
}

// To count devices starts the driver, so they are counted when an option of this worker names one, and in a dynamic group,
// where a newcomer's map may name one at any time. In a static group the maps of others may, which is known when all have
// published their records.
device_record record_of_devices(const rpc_options& options, bool dynamic, std::optional<device_counts> counts) {
  const bool named = !options.devices.empty() ||
                     std::any_of(options.device_maps.begin(), options.device_maps.end(), [](const auto& each) {
                       return std::any_of(each.second.begin(), each.second.end(),
                                          [](const device_pair& pair) { return !pair.from.is_cpu(); });
                     });
  device_record result;
  result.devices = options.devices;
  result.maps = options.device_maps;
  if (!counts && (named || dynamic)) counts = local_device_counts();
  result.counted = counts.has_value();
  if (counts) result.counts = *std::move(counts);
  return result;
}

}  // namespace

native_core::native_core(std::shared_ptr<store> group_store, const worker_config& config, const rpc_options& options,
                         const std::vector<transport_factory>& transports, std::optional<device_counts> counts)
    : own_(config, with_admission(options, config), shared_reactor(), this_host(),
           [this]() -> std::shared_ptr<void> { return shared_from_this(); }),
      devices_(own_, record_of_devices(options, own_.dynamic(), std::move(counts))),
      flow_(own_.options.flow),
      ends_(own_, transports),
      failures_(own_, peers_, links_, ends_, *this),
      group_(make_group({own_, peers_, flow_, totals_, ends_, devices_, failures_, *this}, std::move(group_store))) {
  failures_.set_group(*group_);
}

void native_core::join(request_handler& handler) {
  own_.handler.store(&handler);
  own_.events.set(&handler);
  group_->join(deadline::after(own_.init_timeout));
}

// ---------------------------------------------------------------- calls

call_ticket native_core::call(const call_target& to, outgoing_message&& request, pending_call& call, deadline until,
                              reply_wait how) {
  flow_.active_calls.fetch_add(1, std::memory_order_relaxed);
  try {
    for (;;) {
      auto link = link_to(to, call.urgency == call_urgency::apart, call.reaches_leaving);
      if (call.urgency == call_urgency::high && link->over_limit(request.bytes.size()))
        link = link_to(to, true, call.reaches_leaving);
      std::uint64_t id = 0;
      if (link->call(request, call, until, how, id)) return {std::move(link), id};
    }
  } catch (...) {
    finished_calls(1);
    throw;
  }
}

void native_core::notify(const call_target& to, outgoing_message&& request) {
  while (!link_to(to, false, false)->notify(request)) {
  }
}

bool native_core::within_process(const call_target& to) const noexcept {
  const peer* place = to.record ? static_cast<const peer*>(to.record) : peers_.at(to.id);
  if (!place) return false;
  const std::lock_guard lock(place->mutex);
  return place->link && place->link->within_process();
}

std::shared_ptr<outgoing_link> native_core::link_to(const call_target& to, bool urgent, bool reaches_leaving) {
  peer* place = to.record ? static_cast<peer*>(to.record) : peers_.at(to.id);
  if (!place) {
    // A caller that names an incarnation has learned it from another worker, and may be a thread that must not wait for
    // the store.
    if (to.incarnation.value != 0) {
      throw_error(errc::unknown_worker,
                  fmt::format("{} has no record of worker {} yet", to_string(own_.self), to.id.value));
    }
    place = static_cast<peer*>(group_->locate(to.id, {}).record);  // throws, unless the worker has joined just now
  }
  peer& target = *place;
  std::lock_guard lock(target.mutex);
  if (to.incarnation.value != 0 && target.record->incarnation != to.incarnation) {
    return std::make_shared<outgoing_link>(
        shared_from_this(), target.remote(), errc::peer_lost,
        fmt::format("it is no longer a member of the group; its id was reassigned to {}",
                    to_string(target.record->who)));
  }
  auto& current = urgent ? target.urgent : target.link;
  const bool leaving = target.state == peer_state::leaving;
  if (current && !current->closed() && (target.state == peer_state::member || (leaving && reaches_leaving)))
    return current;
  const remote_worker remote = target.remote();
  const auto refusing = [&](errc code, std::string why) {
    return std::make_shared<outgoing_link>(shared_from_this(), remote, code, std::move(why));
  };
  if (own_.fence.is_up()) return refusing(errc::fenced, own_.fence.reason());
  if (target.state == peer_state::lost) return refusing(errc::peer_lost, target.why_lost());
  if (target.state == peer_state::left || (leaving && !reaches_leaving))
    return refusing(errc::peer_lost, "it has left the group");
  auto link = std::make_shared<outgoing_link>(shared_from_this(), remote);
  if (!links_.add(link)) {
    if (own_.fence.is_up()) return refusing(errc::fenced, own_.fence.reason());
    throw_error(errc::shutting_down, fmt::format("{} has been shut down; it can no longer call {}",
                                                 to_string(own_.self), to_string(target.record->who)));
  }
  current = link;
  try {
    start_connecting(link, *target.record, urgent ? feature_urgent : 0);
  } catch (const std::exception& e) {
    link->fail(errc::connect_failed, e.what());
    throw;
  }
  return link;
}

// The attempt does not begin inline: a failure would end the call before it is registered on the link.
void native_core::start_connecting(const std::shared_ptr<outgoing_link>& link, const worker_record& to,
                                   std::uint64_t features) {
  ends_
      .attempt_to_reach(
          to, features, connect_limit, [link] { return !link->closed(); },
          [this, kept = own_.keep_alive(), link](connect_outcome outcome) {
            link->note_failed_routes(std::move(outcome.failed));
            if (outcome.verdict == connect_verdict::opened) {
              try {
                link->opened(outcome.opened);
                return log_route(link->peer().who);
              } catch (const std::exception& e) {
                outcome.opened->close(std::current_exception());
                return link->fail(errc::connect_failed, e.what());
              }
            }
            const remote_worker& far = link->peer();
            peer& whom = peers_.place(far.who.id());
            // By then the link's calls may have ended already, or another thread may be about to end them: the reason is known.
            failures_.on_connect_outcome(
                whom, far.incarnation, outcome,
                [this, kept, link, &whom, verdict = outcome.verdict, code = outcome.code, why = outcome.why] {
                  if (own_.closing.load()) return link->fail(errc::shutting_down, why);
                  if (verdict == connect_verdict::leaving) return link->fail(errc::peer_lost, why);
                  if (const auto end = failures_.end_of(whom, link->peer().incarnation))
                    return link->fail(errc::peer_lost, *end);
                  link->fail(code, why);
                });
          })
      ->start(*own_.threads);
}

void native_core::on_link_closed(void* link) noexcept {
  if (links_.remove_outgoing(link)) return;
  if (const auto in = links_.remove_incoming(link)) peers_.at(in->peer().who.id())->accepted_calls.fetch_sub(1);
}

void native_core::finished_calls(std::uint64_t count) noexcept {
  flow_.active_calls.fetch_sub(count);
  group_->on_activity();
}

agent_counters native_core::counters() const noexcept {
  return {.client_active_calls = flow_.active_calls.load(),
          .requests_sent = totals_.sent.load(),
          .late_replies = late_replies_.load(),
          .lost_workers = failures_.lost_workers(),
          .queued_calls = flow_.queued_messages.load(),
          .queued_bytes = flow_.queued_bytes.load(),
          .unwritten_bytes = flow_.requests.bytes(),
          .served_bytes = links_.served_bytes(),
          .unwritten_replies = flow_.replies.bytes(),
          .held_handlers = flow_.held_handlers.load(),
          .paused_connections = flow_.paused_links.load()};
}

// ---------------------------------------------------------------- accepting

hello_reply native_core::on_hello(const hello& from) {
  if (!own_.options.transport.secret.empty() && (from.features & feature_authenticated) == 0) {
    throw_error(errc::authentication_failed,
                fmt::format("{} requires the group's secret, but the transport accepted a peer that did not prove it",
                            to_string(own_.self)));
  }
  if (own_.closing.load()) throw_error(errc::shutting_down, fmt::format("{} is shutting down", to_string(own_.self)));
  if ((from.features & feature_observer) != 0) {
    observers_.check_room();
  } else {
    if (own_.fence.is_up()) throw_error(errc::unknown_worker, to_string(own_.self) + " was declared dead by its group");
    check_hello(from);
    if (const peer* known = peers_.at(from.id)) check_connections(*known, from);
  }
  return {.name = own_.self.name(),
          .id = own_.self.id(),
          .incarnation = own_.incarnation,
          .features = feature_device_tensors};
}

void native_core::check_connections(const peer& of, const hello& from) {
  const bool control = (from.features & feature_control) != 0;
  if ((control ? of.accepted_controls : of.accepted_calls).load() < peer::most_connections) return;
  throw_error(errc::resource_exhausted,
              fmt::format("'{}' has {} open connections for {} to '{}', and may have no more", from.name,
                          peer::most_connections, control ? "control" : "calls", from.target));
}

void native_core::check_hello(const hello& from) const {
  if (from.id.value < 0 || from.id.value > worker_id::max || !group_->may_have(from.id)) {
    throw_error(errc::handshake_failed,
                fmt::format("{} has no record of a worker with id {}", to_string(own_.self), from.id.value));
  }
  if (from.incarnation == own_.incarnation && !ends_.greeted_itself(from)) {
    throw_error(
        errc::handshake_failed,
        fmt::format("{} has not opened this connection to itself, as its other end says", to_string(own_.self)));
  }
  // The table of a static group is complete once every worker has published itself; a peer that is ahead of this worker
  // has seen that. The table of a dynamic one is at least as new as `seen`.
  const std::optional<std::uint64_t> seen = group_->table_as_of();
  if (!seen) return;
  const peer* known = peers_.at(from.id);
  if (known) {
    std::lock_guard lock(known->mutex);
    const worker_info& who = known->record->who;
    if (known->record->incarnation == from.incarnation && known->state == peer_state::lost) {
      throw_error(errc::fenced, fmt::format("{} was declared dead by its group: {}", to_string(who), known->end));
    }
    if (known->record->incarnation == from.incarnation && who.name() == from.name) return;
    if (!own_.dynamic() && who.name() != from.name) {
      throw_error(errc::handshake_failed, fmt::format("{} has worker {} on record as '{}', not as '{}'",
                                                      to_string(own_.self), from.id.value, who.name(), from.name));
    }
  }
  if (from.joined > *seen) {
    throw_error(errc::join_pending,
                fmt::format("{} has not read yet that '{}' has joined", to_string(own_.self), from.name));
  }
  throw_error(errc::fenced,
              fmt::format("{} has no record of this incarnation of worker_info(id={}, name={}), or it has ended",
                          to_string(own_.self), from.id.value, from.name));
}

void native_core::on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept {
  if ((from.features & feature_observer) != 0) return observers_.accept(std::move(accepted));
  try {
    peer& place = peers_.place(from.id);
    check_connections(place, from);  // again: others may have been accepted since the hello
    if ((from.features & feature_control) != 0)
      return failures_.add_control(place, std::move(accepted), from.incarnation, false);
    remote_worker far(worker_info(from.name, from.id), from.incarnation, &place.heard);
    far.limits = &place.limits;
    auto link = std::make_shared<incoming_link>(shared_from_this(), std::move(far), *own_.handler.load(), accepted);
    {
      std::lock_guard lock(place.mutex);
      if (own_.ended() || !place.counts(from.incarnation) || !links_.add(link)) {
        link = nullptr;
      } else {
        place.accepted_calls.fetch_add(1);
        if ((from.features & feature_urgent) == 0) place.incoming = link;
      }
    }
    if (!link) {
      if (own_.closing.load()) send_goodbye(*accepted);
      return accepted->close(make_error(errc::shutting_down, "the worker no longer accepts connections"));
    }
    try {
      link->start();
    } catch (...) {
      on_link_closed(link.get());
      throw;
    }
  } catch (const std::exception& e) {
    log_about(from.id, log_level::warning,
              [&] { return fmt::format("{}: refusing {}: {}", own_.self.name(), from.name, e.what()); });
    accepted->close(std::current_exception());
  }
}

bool native_core::expects(std::string_view host) noexcept {
  try {
    return peer_hosts_.with(
        peers_.changes(),
        [&] {
          std::set<std::string, std::less<>> hosts;
          for (const peer* each : peers_.all()) {
            const std::lock_guard lock(each->mutex);
            if (!each->present()) continue;
            for (const std::string& text : each->record->addresses) {
              if (has_scheme(text, "tcp")) hosts.insert(address::parse(text).host);
            }
          }
          return hosts;
        },
        [&](const auto& hosts) { return hosts.contains(host); });
  } catch (const std::exception&) {  // an address of a later version, or out of memory: then it has no privilege
    return false;
  }
}

// ---------------------------------------------------------------- close

void native_core::close() noexcept {
  if (own_.closing.exchange(true)) return;
  links_.refuse_new();
  checks_.stop();
  failures_.stop();
  group_->on_change();
  group_->begin_to_close();
  const auto reason = make_error(errc::shutting_down, fmt::format("{} was shut down", to_string(own_.self)));
  observers_.close(reason);
  const auto until = clock::now() + close_limit;
  for (bool first = true;; first = false) {
    // The first pass still lets queued messages be written; the last one drops them.
    links_.all().close(errc::shutting_down, reason, first);
    if (links_.wait_until_empty(first ? clock::now() + close_limit / 2 : until)) break;
    if (!first) {
      log(log_level::warning, fmt::format("{}: {} connections did not close in time", own_.self.name(), links_.size()));
      break;
    }
  }
  // Until here peers that connect get the error that this worker is leaving, not that it has terminated.
  ends_.stop_listening();
  group_->end();
  own_.events.set(nullptr);
  for (peer* each : peers_.all()) {
    std::shared_ptr<incoming_link> in;
    std::shared_ptr<outgoing_link> link;
    std::shared_ptr<outgoing_link> urgent;
    std::shared_ptr<control_link> control;
    std::lock_guard lock(each->mutex);
    in.swap(each->incoming);
    link.swap(each->link);
    urgent.swap(each->urgent);
    control.swap(each->control);
  }
  group_->on_activity();
  group_->release_store();
}

// ---------------------------------------------------------------- devices

std::vector<device> native_core::devices() const { return group_->devices(); }

std::shared_ptr<const device_maps_between> native_core::maps_to(worker_id id) const {
  (void)group_->find(id);
  const peer* there = peers_.at(id);
  const std::lock_guard lock(there->mutex);
  return there->maps;
}

void native_core::place_tensors(const call_target& to, outgoing_message& message, bool response,
                                const device_map* placement) const {
  message.targets.clear();
  if (!devices_.concerns(message, placement)) return;
  const peer* const there = to.record ? static_cast<const peer*>(to.record) : peers_.at(to.id);
  if (!there) return (void)group_->find(to.id);  // throws
  std::unique_lock lock(there->mutex);
  // A message to a predecessor is not sent, and the maps of its successor do not apply.
  if (to.incarnation.value != 0 && there->state != peer_state::unknown && there->record->incarnation != to.incarnation)
    return;
  const worker_info who = there->record->who;
  const std::shared_ptr<const device_record> devices = there->record->devices;
  const std::shared_ptr<const device_maps_between> maps = there->maps;
  lock.unlock();
  devices_.place(message, response, {who.name(), devices.get()}, maps.get(), placement);
}

}  // namespace ferry::inline v0::detail

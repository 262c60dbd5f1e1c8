// How a worker detects that another one is dead, and the consequences. Two events are distinct:
//
//   loss of a connection   fails the calls on it at once. The peer is suspect until a control connection to it is open
//                          again.
//   death of a worker      no process listens at its address, another incarnation answers there, or its lease has run
//                          out: it was silent for too long. Its incarnation is fenced: every member is notified, and the
//                          worker itself, if it lives.
//
// Heartbeats use a separate control connection, one for each pair of workers, opened at the first tick at which calls
// have a connection: a group that ends sooner has none. A worker without connections to this one is not watched, except
// the next member of a dynamic group (dynamic_group.cpp).
//
// The consequences are in fencing.cpp.

#include "failure_detector.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../../base/peer_log.hpp"
#include "../links/control_route.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds timer_resolution{1};  // of timers
constexpr std::chrono::seconds goodbye_limit{5};          // between a goodbye and the end of the connections

lease_rules rules_of(const rpc_options& options) {
  if (options.heartbeat_interval.is_never()) return {};  // the clock never ticks
  return {options.heartbeat_interval.duration(), options.lease.duration()};
}

}  // namespace

failure_detector::failure_detector(own_worker& own, peer_table& peers, link_table& links, const endpoints& ends,
                                   link_owner& owner)
    : own_(own),
      peers_(peers),
      links_(links),
      ends_(ends),
      owner_(owner),
      beats_(rules_of(own.options), own.threads, own.keep_alive,
             [this](const heartbeat_clock::tick& due) { tick(due); }) {}

// ---------------------------------------------------------------- ticks

void failure_detector::keep_ticking(clock::time_point at) noexcept {
  if (own_.options.heartbeat_interval.is_never() || !group_->is_announced() || own_.fence.is_up()) return;
  beats_.keep_ticking(at);
}

// Ticks come every interval, when heartbeats are sent, and when a lease may have run out.
void failure_detector::tick(const heartbeat_clock::tick& due) noexcept {
  const lease_rules rules{own_.options.heartbeat_interval.duration(), own_.options.lease.duration()};
  bool wanted = false;
  auto next = due.at + rules.interval;
  try {
    if (group_->is_member() && due.late_by > rules.lease) {
      log(log_level::warning, fmt::format("{} was suspended, or starved of CPU time, for {:.1f} s",
                                          to_string(own_.self), in_seconds(due.late_by)));
      group_->look_for_own_fence();
    }
  } catch (const std::exception& e) {
    log(log_level::error, e.what());
    wanted = true;
  }
  ticking_.for_each([&](peer& each) noexcept {
    bool kept = true;
    try {
      wanted = check_peer(each, due, rules, next, kept) || wanted;
    } catch (const std::exception& e) {
      log(log_level::error, e.what());
      wanted = kept = true;
    }
    return kept;
  });
  wanted = beats_.end_tick() || wanted;
  if (wanted) keep_ticking(std::max(next, due.now + timer_resolution));
}

// What a tick does about one peer; true if it needs another tick. `kept`: later ticks are to look at it, too.
bool failure_detector::check_peer(peer& whom, const heartbeat_clock::tick& due, const lease_rules& rules,
                                  clock::time_point& next, bool& kept) {
  const clock::time_point now = due.now;
  liveness_actions actions;
  std::optional<control_route> route;
  incarnation_id incarnation;
  double silence = 0;
  bool overdue = false;
  bool wanted = false;
  {
    std::lock_guard lock(whom.mutex);
    incarnation = whom.record->incarnation;
    if (incarnation == own_.incarnation) return kept = false;
    // One that this worker has no record of yet may become a member before anything else happens to it.
    kept = whom.live.connected() || (whom.present() && whom.live.wants_control());
    // Call messages arrived at some time since the last tick.
    if (whom.heard.exchange(false, std::memory_order_relaxed)) whom.live.renew(now - rules.interval);
    if (due.stalled) whom.live.excuse(now, due.late_by, rules);
    // Without a control connection its heartbeats are queued behind the calls, and are not read while reading is
    // paused.
    if (!whom.control && !whom.live.suspect && whom.incoming && whom.incoming->paused()) whom.live.renew(now);
    if (!group_->is_member()) {
      wanted = actions.send_heartbeat = whom.live.connected();
    } else if (whom.present()) {
      actions = assess(whom.live, now, rules, own_.self.id() < whom.id);
      wanted = whom.live.wants_control() || whom.live.connected();
      if (whom.live.watched() && !actions.declare_lost) {
        next = std::min(next, whom.live.heard + rules.lease + timer_resolution);
      }
      if (actions.ask_log || actions.read_log) whom.live.log_is_asked = true;
    } else {
      wanted = whom.live.links > 0;
      actions.send_heartbeat = whom.live.connected();  // it watches this worker as long as it has calls to end
      overdue = whom.state == peer_state::left && wanted && now - whom.live.heard > goodbye_limit;
    }
    route.emplace(whom);
    silence = in_seconds(now - whom.live.last_word);
  }
  if (actions.open_control) open_control(whom);
  if (actions.send_heartbeat && due.beat) route->send([] { return control_message(control_code::heartbeat); });
  if (actions.ask_log) group_->ask_for_life(whom, incarnation);
  if (actions.read_log) group_->read_answer(whom, incarnation);
  if (actions.declare_lost) {
    lose(whom, incarnation,
         fmt::format("it was silent for {:.1f} s; its lease is {:.1f} s", silence, in_seconds(rules.lease)),
         evidence::silence);
  }
  if (overdue) {
    end_links(&whom, incarnation, errc::peer_lost,
              make_error(errc::peer_lost, "it has left the group, and did not report its end"));
  }
  return wanted;
}

// ---------------------------------------------------------------- connections

void failure_detector::on_link_open(const remote_worker& peer, const connection& opened, bool by_us) noexcept {
  auto& place = *peers_.at(peer.who.id());  // made before any link to it
  {
    std::lock_guard lock(place.mutex);
    if (!place.counts(peer.incarnation)) return;
    place.live.suspect = false;
    place.live.reached = place.live.reached || by_us;
    if (opened.same_process()) return;
    ++place.live.links;
    place.live.renew(clock::now());
  }
  keep_ticking(place);
}

void failure_detector::on_link_lost(const remote_worker& peer, const connection& lost) noexcept {
  auto& place = *peers_.at(peer.who.id());
  bool ask = false;
  std::shared_ptr<incoming_link> in;  // released without the lock
  {
    std::lock_guard lock(place.mutex);
    if (place.record->incarnation != peer.incarnation && place.state != peer_state::unknown) return;
    if (!place.live.watched()) place.live.renew(clock::now());
    if (!lost.same_process()) --place.live.links;
    if (place.live.links == 0) place.incoming.swap(in);
    if (place.state != peer_state::member || own_.ended()) return;
    if (!place.live.control) {
      place.live.suspect = true;
      ask = !place.live.opening;
    }
  }
  if (ask) open_control(place);
  keep_ticking(place);
}

void failure_detector::on_control_closed(control_link& which) noexcept {
  auto& place = *peers_.at(which.peer().who.id());
  bool ask = false;
  std::shared_ptr<control_link> released;
  {
    std::lock_guard lock(place.mutex);
    if (place.control.get() == &which) {
      place.control.swap(released);
      place.live.control = false;
      if (place.is(which.peer().incarnation) && !own_.ended()) {
        if (!place.live.watched()) place.live.renew(clock::now());
        place.live.suspect = true;
        ask = !place.live.opening;
      }
    }
  }
  if (ask) open_control(place);
  keep_ticking(place);
  const auto removed = links_.remove_control(&which);
  if (removed && which.accepted()) place.accepted_controls.fetch_sub(1);
}

void failure_detector::await(peer& whom) noexcept {
  if (whom.id == own_.self.id()) return;
  bool ask = false;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.present()) return;
    if (!whom.live.watched()) whom.live.renew(clock::now());
    group_->begin_to_watch(whom.live);
    ask = !whom.live.control && !whom.live.opening;
  }
  if (ask) open_control(whom);
  keep_ticking(whom);
}

// In a static group, goodbyes are not forwarded, and a worker is notified of a death only if it has a connection to a
// worker that detected it. Members of a dynamic group read every end in the log.
void failure_detector::seek(const call_target& whom) noexcept {
  peer* place = group_->has_log() ? nullptr : peers_.at(whom.id);
  if (!place) return;
  std::lock_guard lock(place->mutex);
  if (place->present(whom.incarnation)) place->live.sought = true;  // the next attempt to reach it decides
}

void failure_detector::open_control(peer& to) noexcept {
  // Until its entry is in the log, other workers have no record of this one and would reject it as an incarnation that
  // has ended.
  if (!group_->is_member()) return;
  shared_record record;
  {
    std::lock_guard lock(to.mutex);
    if (!to.present() || to.live.opening || to.live.control || to.id == own_.self.id()) return;
    record = to.record;
    to.live.opening = true;
  }
  try {
    // Without leases a silent host is probed again only by the next call.
    const auto limit = own_.options.heartbeat_interval.is_never() ? std::chrono::nanoseconds(std::chrono::seconds(30))
                                                                  : own_.options.lease.duration();
    ends_
        .attempt_to_reach(
            *record, feature_control, limit, [this, kept = own_.keep_alive()] { return !own_.ended(); },
            [this, kept = own_.keep_alive(), &to, incarnation = record->incarnation](connect_outcome outcome) {
              {
                std::lock_guard lock(to.mutex);
                to.live.opening = false;
              }
              if (outcome.verdict == connect_verdict::opened)
                return add_control(to, std::move(outcome.opened), incarnation, true);
              if (outcome.verdict == connect_verdict::hung_up) return;  // the next tick retries
              on_connect_outcome(to, incarnation, outcome, [] {});
            })
        ->start(*own_.threads);
  } catch (const std::exception& e) {
    log_about(to.id, log_level::warning, [&] {
      return fmt::format("{}: no control connection to {}: {}", own_.self.name(), to_string(record->who), e.what());
    });
    std::lock_guard lock(to.mutex);
    to.live.opening = false;
  }
}

void failure_detector::add_control(peer& to, std::shared_ptr<connection> opened, incarnation_id incarnation,
                                   bool by_us) {
  std::shared_ptr<control_link> link;
  std::shared_ptr<control_link> before;  // both ends may have opened one at once: the replaced one stays open, unused
  {
    std::lock_guard lock(to.mutex);
    if (!own_.ended() && to.counts(incarnation)) {
      link = std::make_shared<control_link>(kept_owner(), remote_worker(to.record->who, incarnation, &to.heard), opened,
                                            !by_us);
      if (!links_.add(link)) link = nullptr;
    }
    if (link) {
      if (!by_us) to.accepted_controls.fetch_add(1);
      before = std::exchange(to.control, link);
      to.live.control = true;
      to.live.suspect = false;
      to.live.reached = to.live.reached || by_us;
      to.live.renew(clock::now());
    }
  }
  if (!link) {
    if (own_.closing.load()) send_goodbye(*opened);
    return opened->close(make_error(errc::shutting_down, "the worker no longer accepts connections"));
  }
  try {
    link->start();
  } catch (...) {
    opened->close(std::current_exception());
    on_control_closed(*link);
    throw;
  }
  link->send(control_message(control_code::heartbeat));
  keep_ticking(to);
}

void failure_detector::on_connect_outcome(peer& whom, incarnation_id incarnation, const connect_outcome& outcome,
                                          const std::function<void()>& then) noexcept {
  switch (outcome.verdict) {
    case connect_verdict::opened:
    case connect_verdict::unknown: return then();  // its lease decides
    case connect_verdict::exhausted: {
      // Its silence does not count while there is no connection on which it could be heard.
      const std::lock_guard lock(whom.mutex);
      if (whom.counts(incarnation) && !whom.live.connected()) whom.live.allow_for_delay(clock::now());
      break;
    }
    case connect_verdict::hung_up: open_control(whom); break;  // which finds no listener, once it is dead
    case connect_verdict::leaving: depart(whom, incarnation, "it has left the group"); break;
    case connect_verdict::fenced: become_fenced(outcome.why); break;
    case connect_verdict::gone: return on_nothing_there(whom, incarnation, outcome, then);
  }
  then();
}

void failure_detector::on_nothing_there(peer& whom, incarnation_id incarnation, const connect_outcome& outcome,
                                        const std::function<void()>& then) noexcept {
  bool reached = false;
  bool give_up = false;
  {
    std::lock_guard lock(whom.mutex);
    // A member announces itself once it listens; if this worker runs on the same machine, the refusal is that of the
    // right machine.
    const bool same_machine = !own_.host.empty() && whom.record->host == own_.host;
    reached = whom.live.reached || (group_->has_log() && same_machine);
    give_up = whom.live.awaited || (whom.live.sought && same_machine);
  }
  // If this worker has never reached it, the address may be wrong: that is no evidence for others, but waiting cannot
  // succeed here.
  if (reached) {
    try {
      return after_reading_log([this, &whom, incarnation, reason = "it has terminated: " + outcome.why, then] {
        if (!own_.closing.load()) lose(whom, incarnation, reason, evidence::gone);
        then();
      });
    } catch (const std::bad_alloc&) {
      return then();  // its lease decides
    }
  }
  if (!give_up) return after_reading_log(then);
  depart(whom, incarnation, "no process answers at its addresses: " + outcome.why);
  then();
}

// ---------------------------------------------------------------- control frames

void failure_detector::on_control(const remote_worker& from, inbound_message&& message) noexcept {
  switch (static_cast<control_code>(message.header.code)) {
    case control_code::heartbeat: {
      peer& place = *peers_.at(from.who.id());
      std::lock_guard lock(place.mutex);
      if (place.counts(from.incarnation)) place.live.renew(clock::now());
      return;
    }
    case control_code::cancel: return cancel_served(from, message.header.call_id);
    case control_code::goodbye: return depart(*peers_.at(from.who.id()), from.incarnation, "it has left the group");
    case control_code::fence: break;
    default: return;  // of a later version
  }
  try {
    const auto notice = fence_notice::decode(message, own_.options.transport.limits);
    {
      const peer& sender = *peers_.at(from.who.id());
      std::lock_guard lock(sender.mutex);
      if (!sender.present(from.incarnation)) return;  // reports of dead workers do not count
    }
    if (notice.incarnation == own_.incarnation)
      return become_fenced(fmt::format("{} reports: {}", to_string(from.who), notice.reason));
    if (!group_->is_member() || notice.who.id() == own_.self.id()) return;
    if (peer* whom = peers_.at(notice.who.id())) lose(*whom, notice.incarnation, notice.reason, evidence::notice);
  } catch (const std::exception& e) {
    log_about(from.who.id(), log_level::warning, [&] {
      return fmt::format("{} sent a control frame that cannot be read: {}", to_string(from.who), e.what());
    });
  }
}

// If the peer does not read this worker's calls at present, the cancellation arrives on this connection. It may
// overtake the call itself, and then has no effect; the one queued behind the call does.
void failure_detector::on_cancel(const remote_worker& peer, std::uint64_t call_id) noexcept {
  const auto& place = *peers_.at(peer.who.id());
  std::shared_ptr<control_link> control;
  {
    std::lock_guard lock(place.mutex);
    if (place.record->incarnation == peer.incarnation) control = place.control;
  }
  if (!control) return;
  try {
    control->send(control_message(control_code::cancel, call_id));
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: a cancellation waits behind its call");
  }
}

void failure_detector::cancel_served(const remote_worker& from, std::uint64_t call_id) noexcept {
  const auto& place = *peers_.at(from.who.id());
  std::shared_ptr<incoming_link> calls;
  {
    std::lock_guard lock(place.mutex);
    if (place.counts(from.incarnation)) calls = place.incoming;
  }
  if (calls && calls->peer().incarnation == from.incarnation) calls->cancel(call_id);
}

}  // namespace ferry::inline v0::detail

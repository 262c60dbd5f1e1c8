// The consequences of the end of another worker: its connections end, the listener is notified, and, if it died, its
// incarnation is fenced: every member is notified, and the worker itself, if it lives. failure_detector.cpp detects it.
//
// A fence is sent to the members that a connection leads to, each of which forwards it once, and recorded by the group
// (group_records), where a worker that has been suspended for long looks before it reports anything about others.

#include "failure_detector.hpp"

#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../../base/peer_log.hpp"
#include "../detached.hpp"
#include "../links/control_route.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds log_grace{1};  // between the end of a worker and declaring it lost

}  // namespace

void failure_detector::depart(peer& whom, incarnation_id incarnation, std::string reason, departure how) noexcept {
  try {
    record_departure(whom, incarnation, std::move(reason), how);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the leave of a worker was not recorded: {}", own_.self.name(), e.what()));
  }
}

void failure_detector::record_departure(peer& whom, incarnation_id incarnation, std::string reason, departure how) {
  member_event event{member_event::kind::left, {}, incarnation, std::move(reason)};
  std::string end = event.reason;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.is(incarnation)) return;
    event.who = whom.record->who;
  }
  store_record entry;
  if (how == departure::unlogged) entry = group_->departure_of(event.who, incarnation);
  bool left = false;
  own_.events.member(event, [&] {
    std::lock_guard lock(whom.mutex);
    if (!whom.is(incarnation)) return false;
    left = true;
    whom.state = peer_state::left;
    peers_.note_change();
    whom.end.swap(end);
    whom.live.renew(clock::now());
    return !own_.closing.load();
  });
  if (!left) return;
  if (how != departure::begun && !own_.closing.load()) own_.events.member_end(event.who.id(), incarnation);
  group_->on_activity();
  keep_ticking(whom);
  if (entry.write && group_->is_member() && !own_.ended()) {
    group_->on_departure();
    group_->write_later(std::move(entry));
  }
}

// Call with no lock held.
void failure_detector::lose(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) noexcept {
  try {
    declare_lost(whom, incarnation, reason, from);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the loss of a worker was not recorded: {}", own_.self.name(), e.what()));
  }
}

void failure_detector::declare_lost(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) {
  if (own_.ended() || whom.id == own_.self.id()) return;
  member_event event{member_event::kind::lost, {}, incarnation, reason};
  std::string end = reason;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.present(incarnation)) return;
    event.who = whom.record->who;
  }
  const std::string who = to_string(event.who);
  const fence_notice notice{event.who, incarnation, reason};
  const auto dead = make_error(errc::peer_lost, fmt::format("{} is dead: {}", who, reason));
  const auto dead_while_leaving = make_error(
      errc::peer_lost, fmt::format("{} has left the group, and died before it had ended its calls: {}", who, reason));
  store_record entry;
  if (from == evidence::gone || from == evidence::silence) entry = group_->end_of_leaving(notice);
  bool served_store = false;
  auto became = peer_state::unknown;
  own_.events.member(event, [&] {
    std::lock_guard lock(whom.mutex);
    if (!whom.present(incarnation)) return false;
    served_store = whom.record->serves_store;
    became = whom.state == peer_state::leaving ? peer_state::left : peer_state::lost;
    whom.state = became;
    peers_.note_change();
    whom.end.swap(end);
    return became == peer_state::lost;  // the leave was told when it began
  });
  if (became == peer_state::unknown) return;
  if (became == peer_state::left) {
    own_.events.member_end(event.who.id(), incarnation);
    end_links(&whom, incarnation, errc::peer_lost, dead_while_leaving);
    group_->on_activity();
    if (entry.write) group_->write_later(std::move(entry));
    return;
  }
  lost_workers_.fetch_add(1);
  end_links(&whom, incarnation, errc::peer_lost, dead);
  group_->on_activity();
  try {
    log_about(event.who.id(), log_level::warning,
              [&] { return fmt::format("{}: {} is lost: {}", to_string(own_.self), who, reason); });
    if (served_store) group_->on_store_host_lost(who, reason);
    switch (from) {
      case evidence::record: return;
      case evidence::notice: return spread(notice);
      case evidence::gone: spread(notice); return group_->publish_loss(notice, false);
      case evidence::silence: return group_->publish_loss(notice, true);  // calls spread()
    }
  } catch (const std::exception& e) {
    log(log_level::error,
        fmt::format("{}: the group was not told that {} is lost: {}", own_.self.name(), who, e.what()));
  }
}

// Ends those of one incarnation of a worker, or (null) all. They are closed twice: the peer will not read what they
// have queued.
void failure_detector::end_links(const peer* whom, incarnation_id incarnation, errc code,
                                 const std::exception_ptr& why) noexcept {
  try {
    const link_list ended = whom ? links_.of(whom->id, incarnation) : links_.all();
    for (int once = 0; once != 2; ++once) ended.close(code, why, false);
  } catch (const std::bad_alloc&) {
    log(log_level::error, "out of memory: connections to lost workers were not closed");
  }
}

// Sends to every worker that a connection leads to, or is about to.
void failure_detector::spread(const fence_notice& notice) noexcept {
  try {
    for (peer* each : peers_.all()) {
      std::optional<control_route> route;
      {
        std::lock_guard lock(each->mutex);
        if (each->present()) route.emplace(*each);
      }
      if (route) route->send([&] { return notice.encode(); }, true);
    }
  } catch (const std::exception& e) {
    log(log_level::error, e.what());
  }
}

// A member of a dynamic group may have announced its leave in the log only.
// A worker that has left may have been seen to do so by none that this one hears of.
void failure_detector::after_reading_log(const std::function<void()>& next) noexcept {
  if (group_->has_log()) {
    try {
      return run_detached(*own_.threads, [this, kept = own_.keep_alive(), next] {
        if (!own_.closing.load()) (void)group_->read_records(deadline::after(log_grace));
        next();
      });
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory to read the log first
    }
  }
  next();
}

void failure_detector::become_fenced(const std::string& reason) noexcept {
  try {
    accept_fence(reason);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the fence was not handled: {}", own_.self.name(), e.what()));
  }
}

void failure_detector::accept_fence(const std::string& reason) {
  std::string why = fmt::format(
      "{} was declared dead by its group and excluded from it ({}); a new worker may "
      "be started in its place",
      to_string(own_.self), reason);
  const auto fenced = make_error(errc::fenced, why);
  const member_event event{member_event::kind::fenced, own_.self, own_.incarnation, why};
  if (own_.closing.load() || !own_.fence.raise(std::move(why))) return;
  links_.refuse_new();
  log(log_level::error, own_.fence.reason());
  end_links(nullptr, {}, errc::fenced, fenced);
  own_.events.member(event);
  group_->on_activity();
  group_->on_change();
}

// ---------------------------------------------------------------- what is known

std::optional<std::string> failure_detector::end_of(const peer& whom, incarnation_id incarnation) const {
  const std::lock_guard lock(whom.mutex);
  if (whom.state == peer_state::unknown) return {};
  if (whom.record->incarnation != incarnation) {
    return fmt::format("it is no longer a member of the group; its id was reassigned to {}",
                       to_string(whom.record->who));
  }
  if (whom.state == peer_state::lost) return whom.why_lost();
  if (whom.state == peer_state::left || whom.state == peer_state::leaving) return "it has left the group";
  return {};
}

std::optional<std::chrono::nanoseconds> failure_detector::silence(worker_id of) const noexcept {
  const peer* place = peers_.at(of);
  const timeout interval = own_.options.heartbeat_interval;
  if (!place || of == own_.self.id() || interval.is_never()) return std::nullopt;
  std::lock_guard lock(place->mutex);
  if (!place->live.connected() && !place->live.suspect) return std::nullopt;
  const std::chrono::nanoseconds known = std::max(clock::now() - place->live.last_word, clock::duration{});
  // A message arrived since the last tick, which has yet to record it.
  if (place->heard.load(std::memory_order_relaxed)) return std::min(known, interval.duration());
  return known;
}

}  // namespace ferry::inline v0::detail

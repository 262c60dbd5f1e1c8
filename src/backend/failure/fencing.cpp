// The consequences of the end of another worker: its connections end, the listener is notified, and, if it died, its
// incarnation is fenced: every member is notified, and the worker itself, if it lives. failure.cpp has the detection.
//
// A fence is sent to the members that a connection leads to, each of which forwards it once, and written to the store:
// in the log of a dynamic group, where the first entry wins; in a static one as
//
//   fence/<id>         "<incarnation>\n<reason>"
//   silence/<a>/<b>    of two incarnations, the first one that declared the other one silent; the other one is dead
//
// where a worker that has been suspended for long looks before it reports anything about others.

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "../../base/peer_log.hpp"
#include "../agent/native_agent.hpp"
#include "../detached.hpp"
#include "../links/control_route.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::seconds store_probe_limit{1};
constexpr std::chrono::seconds log_grace{1};  // between the end of a worker and declaring it lost

std::string fence_key(worker_id id) { return fmt::format("fence/{}", id.value); }
std::string fence_value(incarnation_id incarnation, const std::string& reason) {
  return fmt::format("{:016x}\n{}", incarnation.value, reason);
}

}  // namespace

bool native_core::is_gone(int rank) const {
  const peer* place = peers_.at(worker_id{rank});
  std::lock_guard lock(place->mutex);
  return place->state == peer_state::lost || place->state == peer_state::left;
}

int native_core::gone_count() const {
  int result = 0;
  for (int rank = 0; rank != world_size_; ++rank) result += is_gone(rank) ? 1 : 0;
  return result;
}

void native_core::depart(peer& whom, incarnation_id incarnation, std::string reason, departure how) noexcept {
  try {
    record_departure(whom, incarnation, std::move(reason), how);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the leave of a worker was not recorded: {}", self_.name(), e.what()));
  }
}

void native_core::record_departure(peer& whom, incarnation_id incarnation, std::string reason, departure how) {
  member_event event{member_event::kind::left, {}, incarnation, std::move(reason)};
  std::string end = event.reason;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.is(incarnation)) return;
    event.who = whom.record.who;
  }
  std::function<void()> entry;
  std::string what;
  if (log_ && how == departure::unlogged) {
    entry = [this, incarnation] { write_gone(incarnation); };
    what = fmt::format("{} has left", to_string(event.who));
  }
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.is(incarnation)) return;
    whom.state = peer_state::left;
    group_changes_.fetch_add(1, std::memory_order_release);
    whom.end.swap(end);
    whom.live.renew(clock::now());
  }
  if (!closing_.load()) {
    report(event);
    if (how != departure::begun) report_end(event.who.id(), incarnation);
  }
  activity_changed();
  keep_ticking();
  if (entry && is_member() && !closing_.load() && !fence_.is_up()) {
    wake_waiting();
    watch_next();
    access_.write_later(std::move(entry), std::move(what));
  }
}

// Call with no lock held.
void native_core::lose(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) noexcept {
  try {
    declare_lost(whom, incarnation, reason, from);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the loss of a worker was not recorded: {}", self_.name(), e.what()));
  }
}

void native_core::declare_lost(peer& whom, incarnation_id incarnation, const std::string& reason, evidence from) {
  if (ended() || whom.id == self_.id()) return;
  member_event event{member_event::kind::lost, {}, incarnation, reason};
  std::string end = reason;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.present(incarnation)) return;
    event.who = whom.record.who;
  }
  const std::string who = to_string(event.who);
  const fence_notice notice{event.who, incarnation, reason};
  const auto dead = make_error(errc::peer_lost, fmt::format("{} is dead: {}", who, reason));
  const auto dead_while_leaving = make_error(
      errc::peer_lost, fmt::format("{} has left the group, and died before it had ended its calls: {}", who, reason));
  std::function<void()> entry;
  std::string what;
  if (log_ && (from == evidence::gone || from == evidence::silence)) {
    entry = [this, incarnation, reason] {
      (void)log_->append(member_entry::lost(incarnation_, incarnation, reason), deadline::after(store_limit));
    };
    what = fmt::format("{} has terminated", who);
  }
  bool left = false;
  bool served_store = false;
  {
    std::lock_guard lock(whom.mutex);
    if (!whom.present(incarnation)) return;
    served_store = whom.record.serves_store;
    left = whom.state == peer_state::leaving;
    whom.state = left ? peer_state::left : peer_state::lost;
    group_changes_.fetch_add(1, std::memory_order_release);
    whom.end.swap(end);
  }
  if (left) {  // its leave was reported then
    report_end(event.who.id(), incarnation);
    end_links(&whom, incarnation, errc::peer_lost, dead_while_leaving);
    activity_changed();
    if (entry) access_.write_later(std::move(entry), std::move(what));
    return;
  }
  lost_workers_.fetch_add(1);
  end_links(&whom, incarnation, errc::peer_lost, dead);
  report(event);
  activity_changed();
  try {
    log_about(event.who.id(), log_level::warning,
              [&] { return fmt::format("{}: {} is lost: {}", to_string(self_), who, reason); });
    if (served_store && !log_) check_store_without(who, reason);
    switch (from) {
      case evidence::record: return;
      case evidence::notice: return spread(notice);
      case evidence::gone: spread(notice); return publish_fence(notice, false);
      case evidence::silence: return publish_fence(notice, true);  // calls spread()
    }
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the group was not told that {} is lost: {}", self_.name(), who, e.what()));
  }
}

// Ends those of one incarnation of a worker, or (null) all. They are closed twice: the peer will not read what they
// have queued.
void native_core::end_links(const peer* whom, incarnation_id incarnation, errc code,
                            const std::exception_ptr& why) noexcept {
  try {
    const link_list ended = whom ? links_.of(whom->id, incarnation) : links_.all();
    for (int once = 0; once != 2; ++once) ended.close(code, why, false);
  } catch (const std::bad_alloc&) {
    log(log_level::error, "out of memory: connections to lost workers were not closed");
  }
}

// Sends to every worker that a connection leads to, or is about to.
void native_core::spread(const fence_notice& notice) noexcept {
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
void native_core::lose_unless_left(peer& whom, incarnation_id incarnation, const std::string& reason) noexcept {
  if (!log_) return lose(whom, incarnation, reason, evidence::gone);
  try {
    run_detached(*reactor_, [self = shared_from_this(), &whom, incarnation, reason] {
      if (self->closing_.load()) return;
      (void)self->access_.read_log(deadline::after(log_grace));
      self->lose(whom, incarnation, reason, evidence::gone);
    });
  } catch (const std::bad_alloc&) {
    lose(whom, incarnation, reason, evidence::gone);
  }
}

// All others read the log; of two workers that declare each other dead, the first entry wins.
void native_core::record_loss(const fence_notice& notice, bool contested) {
  (void)log_->append(member_entry::lost(incarnation_, notice.incarnation, notice.reason), deadline::after(store_limit));
  if (contested && !fence_.is_up()) spread(notice);
}

// Two workers whose link is cut declare each other dead: of the two, the store accepts the first one.
void native_core::write_fence(const fence_notice& notice, bool contested) {
  if (log_) return record_loss(notice, contested);
  const auto where = group_store();
  if (!where) return;
  const auto until = deadline::after(store_limit);
  if (contested) {
    const std::string own = fmt::format("{:016x}", incarnation_.value);
    const auto [less, more] = std::minmax(incarnation_.value, notice.incarnation.value);
    const std::string first = where->compare_set(fmt::format("silence/{:016x}/{:016x}", less, more), "", own, until);
    if (first != own) {
      return become_fenced(
          fmt::format("{} lost contact with it, and was the first to report that", to_string(notice.who)));
    }
    spread(notice);
  }
  where->set(fence_key(notice.who.id()), fence_value(notice.incarnation, notice.reason), until);
}

void native_core::publish_fence(const fence_notice& notice, bool contested) noexcept {
  access_.write_later(
      [this, notice, contested, first = true]() mutable {
        try {
          write_fence(notice, contested);
        } catch (const error&) {
          if (contested && std::exchange(first, false)) spread(notice);
          throw;
        }
      },
      fmt::format("{} is lost", to_string(notice.who)));
}

// It may be reached on another path than its worker. A store that does not answer now is not asked again: requests to
// it, which a stopped process neither answers nor refuses, would all wait until their deadlines.
void native_core::check_store_without(const std::string& host, const std::string& reason) noexcept {
  try {
    run_detached(*reactor_, [self = shared_from_this(), host, reason] {
      const auto where = self->group_store();
      if (!where || self->closing_.load()) return;
      try {
        (void)where->try_get("group", deadline::after(store_probe_limit));
      } catch (const error& e) {
        if (self->closing_.load()) return;
        log(log_level::warning, fmt::format("{} gives up the {}, which {} served: {}", to_string(self->self_),
                                            where->describe(), host, e.message()));
        where->give_up(fmt::format("{}, which served it, is lost: {}", host, reason));
      }
    });
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{}: did not check the store: {}", self_.name(), e.what()));
  }
}

void native_core::look_for_own_fence() noexcept {
  if (log_) {
    (void)access_.request_read();
    return;
  }
  try {
    run_detached(*reactor_, [self = shared_from_this()] {
      const auto where = self->group_store();
      if (!where) return;
      const auto fence = where->try_get(fence_key(self->self_.id()), deadline::after(store_limit));
      if (fence && fence->starts_with(fence_value(self->incarnation_, {}))) {
        self->become_fenced(fmt::format("the store reports: {}", fence->substr(fence->find('\n') + 1)));
      }
    });
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: did not look for a fence");
  }
}

void native_core::become_fenced(const std::string& reason) noexcept {
  try {
    accept_fence(reason);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: the fence was not handled: {}", self_.name(), e.what()));
  }
}

void native_core::accept_fence(const std::string& reason) {
  std::string why = fmt::format(
      "{} was declared dead by its group and excluded from it ({}); a new worker may "
      "be started in its place",
      to_string(self_), reason);
  const auto fenced = make_error(errc::fenced, why);
  const member_event event{member_event::kind::fenced, self_, incarnation_, why};
  if (closing_.load() || !fence_.raise(std::move(why))) return;
  links_.refuse_new();
  log(log_level::error, fence_.reason());
  end_links(nullptr, {}, errc::fenced, fenced);
  report(event);
  activity_changed();
  wake_waiting();
}

}  // namespace ferry::inline v0::detail

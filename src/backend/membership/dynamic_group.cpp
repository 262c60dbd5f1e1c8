// How workers join and leave a dynamic group: entries of its log (member_log.hpp), which every member reads. Joining
// and leaving wait for no other member, except for one that holds the requested name or id and does not answer.

#include "dynamic_group.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/backend/agent.hpp>
#include <ferry/base/log.hpp>

#include "../detached.hpp"

namespace ferry::inline v0::detail {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds entry_poll_pause{50};
constexpr std::chrono::milliseconds pause_for_leaving{500};
constexpr std::chrono::milliseconds least_for_end{1000};  // minimum time for writing the end to the store, whatever the
                                                          // deadline of the shutdown

// The writer of an entry wakes the waiting members, unless it ends in between, or the store rejects the write. Members
// poll for that case: a log entry may request a sign of life, which is due within the lease.
std::chrono::nanoseconds longest_wait_for_news(timeout lease) noexcept {
  return lease.is_never() ? 10s : std::clamp<std::chrono::nanoseconds>(lease.duration() / 2, entry_poll_pause, 10s);
}

// Every change wakes every member, which reads it. Members of a large group read changes that follow each other closely
// together: all of them read 10,000 times a second at most, however many they are. A change that comes alone is read at once.
// What the log says may be a query, which is due within the lease; and newcomers are refused until their entries were read.
std::chrono::nanoseconds pause_between_reads(std::size_t members, timeout lease) noexcept {
  constexpr std::size_t at_once = 20;
  if (members <= at_once) return 0ns;
  const std::chrono::nanoseconds longest =
      lease.is_never() ? 1s : std::min<std::chrono::nanoseconds>(lease.duration() / 8, 1s);
  return std::min<std::chrono::nanoseconds>(100us * members, longest);
}

}  // namespace

// ---------------------------------------------------------------- joining

void dynamic_group::join(deadline until) {
  agree_on_group(until);
  log_ = std::make_unique<member_log>(group_store(), [this](const membership_change& change) { take(change); });
  log_->load(until);
  choose_id();
  warm_up_named_devices();
  for (;;) {
    make_room(until);
    choose_id();
    check_devices_fit();
    // Other workers may read this worker's entry, and connect, before it has read its place in the order; and one that
    // looks for a predecessor may find it as soon as it listens.
    own_.announced.store(~std::uint64_t{0});
    listen();
    const auto change = log_->append(member_entry::join(own_record()), until);
    // Others may have read the entry, and removed it, before this worker saw that it was accepted.
    if (change == membership_change::kind::joined || joined_.load() != 0) break;
    own_.announced.store(0);
    ends_
        .stop_listening();  // another worker took the name or the id first, or has joined with device maps that conflict
  }
  follower_ = std::thread([this] { follow(); });
  watch_next();
  warm_up_mapped_devices();
}

void dynamic_group::choose_id() {
  if (own_.wanted_id != any_rank) return;
  own_.self = worker_info(own_.self.name(), log_->view([](const membership& there) { return there.lowest_free_id(); }));
}

void dynamic_group::check_devices_fit() const {
  const worker_record own = own_record();
  const std::string broken = log_->view([&](const membership& there) { return there.device_conflict(own); });
  if (!broken.empty()) throw_error(errc::invalid_argument, broken);
}

void dynamic_group::make_room(deadline until) {
  // A lease, as among members; without leases as long as starting may take.
  const auto a_lease = [&] {
    return own_.options.heartbeat_interval.is_never() ? until : deadline::after(own_.options.lease);
  };
  auto lease_wait = a_lease();
  for (;;) {
    bool same_name = false;
    const auto holder = log_->view([&](const membership& there) -> std::optional<group_member> {
      const group_member* found = there.find(own_.self.name());
      same_name = found != nullptr;
      if (!found && own_.wanted_id != any_rank) found = there.find(worker_id{own_.wanted_id});
      if (!found) return std::nullopt;
      return *found;
    });
    if (!holder) return;
    const worker_record& there = *holder->record;
    const connect_outcome outcome = probe(there, std::min(lease_wait, until));
    const bool on_this_machine = !own_.host.empty() && own_.host == there.host;
    const bool patient = !lease_wait.expired() && !until.expired();
    switch (outcome.verdict) {
      case connect_verdict::gone:  // on another machine the address may be the wrong one
      case connect_verdict::unknown:
        if (outcome.verdict == connect_verdict::unknown && outcome.answered) break;
        if (patient && !(outcome.verdict == connect_verdict::gone && on_this_machine)) {
          (void)log_->wait(deadline::after(entry_poll_pause));
          log_->catch_up(last_look(until));
        } else {
          (void)log_->append(member_entry::lost({}, there.incarnation,
                                                fmt::format("'{}' takes its place: {}", own_.self.name(), outcome.why)),
                             last_look(until));
        }
        continue;
      case connect_verdict::exhausted:
        if (!patient) {
          throw_error(errc::resource_exhausted,
                      fmt::format("cannot find out whether '{}', whose place it takes, lives: {}", there.who.name(),
                                  outcome.why));
        }
        [[fallthrough]];
      case connect_verdict::leaving:
      case connect_verdict::hung_up:  // the answer will be clear soon
        if (!patient || holder->leaving) break;
        (void)log_->wait(deadline::after(entry_poll_pause));
        log_->catch_up(last_look(until));
        continue;
      case connect_verdict::opened:
      case connect_verdict::fenced: break;
    }
    // A leaving worker lives for a while, and keeps its name and its id until it ends.
    if (holder->leaving && !until.expired()) {
      (void)log_->wait(std::min(until, deadline::after(pause_for_leaving)));
      log_->catch_up(last_look(until));
      lease_wait = a_lease();
      continue;
    }
    if (holder->leaving) throw_still_leaving(there, same_name);
    const std::string why = outcome.why.empty() ? std::string() : fmt::format(" ({})", outcome.why);
    if (same_name) {
      throw_error(errc::duplicate_name, fmt::format("worker name '{}' is not unique: {} has it, and is alive{}",
                                                    own_.self.name(), to_string(there.who), why));
    }
    throw_error(errc::duplicate_id, fmt::format("worker id {} is not unique: {} has it, and is alive{}", own_.wanted_id,
                                                to_string(there.who), why));
  }
}

void dynamic_group::throw_still_leaving(const worker_record& holder, bool by_name) const {
  throw_error(by_name ? errc::duplicate_name : errc::duplicate_id,
              fmt::format("worker {} is not free yet: {} is leaving the group and still has calls to end at "
                          "init_timeout. Choose another one, or raise init_timeout",
                          by_name ? fmt::format("name '{}'", own_.self.name()) : fmt::format("id {}", own_.wanted_id),
                          to_string(holder.who)));
}

// Whether a member lives, probed by a non-member: it refuses the connection, which is an answer. Blocks.
connect_outcome dynamic_group::probe(const worker_record& holder, deadline until) {
  struct answer {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<connect_outcome> outcome;
  };
  auto state = std::make_shared<answer>();
  const auto limit = until.is_never() ? std::chrono::nanoseconds(std::chrono::hours(1))
                                      : std::max<std::chrono::nanoseconds>(until.remaining(), entry_poll_pause);
  ends_
      .attempt_to_reach(
          holder, feature_control, limit, [] { return true; },
          [state](connect_outcome outcome) {
            if (outcome.opened)
              outcome.opened->close(
                  make_error(errc::shutting_down, "the connection only probed whether the worker lives"));
            const std::lock_guard lock(state->mutex);
            state->outcome = std::move(outcome);
            state->there.notify_all();
          })
      ->start(*own_.threads);
  const blocking_scope blocking;
  std::unique_lock lock(state->mutex);
  state->there.wait(lock, [&] { return state->outcome.has_value(); });
  return *std::move(state->outcome);
}

// ---------------------------------------------------------------- changes from the log

// Called by the log, in the order of its entries. Throws std::bad_alloc before anything has changed, then is called
// again with the same change.
void dynamic_group::take(const membership_change& change) {
  if (change.what == membership_change::kind::none) return;
  try {
    if (change.member.record->incarnation == own_.incarnation) {
      take_own(change);
    } else {
      take_others(change);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: a change of the group was not handled: {}", own_.self.name(), e.what()));
  }
  on_change();
  if (is_member()) watch_next();
}

void dynamic_group::take_own(const membership_change& change) {
  const group_member& member = change.member;
  const worker_record& record = *member.record;
  switch (change.what) {
    case membership_change::kind::joined: {
      const member_event event{member_event::kind::joined, record.who, record.incarnation, {}};
      const std::vector<peer*> others = peers_.all();
      // The snapshot has the query, but its entry may be gone.
      if (member.suspected != 0) answer_suspicion();
      return own_.events.member(event, [&] {
        admit(member.record);
        own_.announced.store(member.joined);
        for (peer* each : others) {  // the duration of the join does not count as their silence
          const std::lock_guard lock(each->mutex);
          each->live.allow_for_delay(clock::now());
        }
        joined_.store(member.joined);
        return true;
      });
    }
    case membership_change::kind::suspected: return answer_suspicion();
    case membership_change::kind::gone:
      if (gone_written_.load()) return;
      [[fallthrough]];
    case membership_change::kind::lost:
      return failures_.accept_fence(change.reason.empty() ? "the group's log does not list it as a member"
                                                          : change.reason);
    case membership_change::kind::none:
    case membership_change::kind::left:
    case membership_change::kind::answered: return;
  }
}

void dynamic_group::answer_suspicion() {
  access_.add_write([this] { (void)log_->append(member_entry::alive(own_.incarnation), deadline::after(store_limit)); },
                    "it lives", true);
}

void dynamic_group::take_others(const membership_change& change) {
  const bool leaving = change.member.leaving;
  const worker_record& record = *change.member.record;
  peer& place = peers_.place(record.who.id());
  switch (change.what) {
    case membership_change::kind::joined: {
      const member_event event{member_event::kind::joined, record.who, record.incarnation, {}};
      own_.events.member(event, [&] {
        admit(change.member.record);
        return !leaving;
      });
      if (!leaving) return;
      [[fallthrough]];
    }
    case membership_change::kind::left: {
      if (!leaving || change.what == membership_change::kind::left) {
        failures_.record_departure(place, record.incarnation, "it has left the group",
                                   failure_detector::departure::begun);
      }
      {
        std::lock_guard lock(place.mutex);
        if (place.record->incarnation == record.incarnation && place.state != peer_state::lost)
          place.state = peer_state::leaving;
        peers_.note_change();
      }
      return failures_.keep_ticking(place);  // a tick that saw it as left has dropped it
    }
    case membership_change::kind::gone: {
      if (!leaving) {
        return failures_.record_departure(place, record.incarnation, "it has left the group",
                                          failure_detector::departure::in_log);
      }
      {
        std::lock_guard lock(place.mutex);
        if (place.record->incarnation != record.incarnation || !place.present()) return;
        place.state = peer_state::left;
        peers_.note_change();
        place.live.renew(clock::now());
      }
      return own_.events.member_end(record.who.id(), record.incarnation);
    }
    case membership_change::kind::lost:
      // Losses before this worker joined are not its own.
      if (!is_member())
        return failures_.record_departure(place, record.incarnation, change.reason,
                                          failure_detector::departure::in_log);
      return failures_.declare_lost(place, record.incarnation, change.reason, failure_detector::evidence::record);
    case membership_change::kind::answered: {
      std::lock_guard lock(place.mutex);
      if (place.record->incarnation == record.incarnation && place.live.question != 0)
        place.live.take_answer(clock::now());
      return;
    }
    case membership_change::kind::none:
    case membership_change::kind::suspected: return;
  }
}

void dynamic_group::follow() noexcept {
  auto pause = entry_poll_pause;
  bool reported = false;
  while (!own_.closing.load()) {
    try {
      log_->catch_up(deadline::after(store_limit));
      const auto read = clock::now();
      (void)log_->wait(deadline::after(longest_wait_for_news(own_.options.lease)));
      const auto members = log_->view([](const membership& there) { return there.members().size(); });
      const auto rest = pause_between_reads(members, own_.options.lease) - (clock::now() - read);
      if (rest > 0ns) access_.pause(rest);
      pause = entry_poll_pause;
      reported = false;
      continue;
    } catch (const std::exception& e) {
      if (own_.closing.load()) return;
      if (!std::exchange(reported, true)) {
        log(log_level::warning,
            fmt::format("{} cannot read which workers join or leave until the store can be reached: {}",
                        to_string(own_.self), e.what()));
      }
    }
    access_.pause(pause);
    // The log may contain a query for this worker, so the pause must stay below the lease.
    const auto longest = std::max(
        entry_poll_pause, std::chrono::duration_cast<std::chrono::milliseconds>(own_.options.lease.duration() / 4));
    pause = std::min<std::chrono::milliseconds>(2 * pause, std::min<std::chrono::milliseconds>(longest, 2s));
  }
}

bool dynamic_group::catch_up() noexcept {
  if (!log_) return false;
  try {
    log_->catch_up(deadline::after(store_limit));
    return true;
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: the group's log cannot be read: {}", to_string(own_.self), e.what()));
    return false;
  }
}

// Members watch each other in a ring by id: each has one watcher, and watches one. A worker that resumes after its
// death was recorded is not watched any more.
void dynamic_group::watch_next() noexcept {
  if (own_.options.heartbeat_interval.is_never()) return;
  try {
    std::lock_guard watching(ring_mutex_);
    // Found within a few steps: this runs at every change of the group.
    peer* next = peers_.next_after(own_.self.id(), [](const peer& each) {
      std::lock_guard lock(each.mutex);
      return each.present();
    });
    peer* before = std::exchange(watched_, next);
    if (before && before != next) {
      std::lock_guard lock(before->mutex);
      before->live.guarded = false;
      before->live.question = 0;
    }
    if (next) failures_.await(*next);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{} cannot watch the next member: {}", to_string(own_.self), e.what()));
  }
}

void dynamic_group::on_departure() noexcept {
  on_change();
  watch_next();
}

// ---------------------------------------------------------------- ends of others

store_record dynamic_group::departure_of(const worker_info& who, incarnation_id incarnation) {
  return {[this, incarnation] { write_gone(incarnation); }, fmt::format("{} has left", to_string(who))};
}

store_record dynamic_group::end_of_leaving(const fence_notice& notice) {
  return {[this, notice] { write_loss(notice, false); }, fmt::format("{} has terminated", to_string(notice.who))};
}

// All others read the log; of two workers that declare each other dead, the first entry wins.
void dynamic_group::write_loss(const fence_notice& notice, bool contested) {
  (void)log_->append(member_entry::lost(own_.incarnation, notice.incarnation, notice.reason),
                     deadline::after(store_limit));
  if (contested && !own_.fence.is_up()) failures_.spread(notice);
}

// ---------------------------------------------------------------- unreachable members

void dynamic_group::ask_for_life(peer& whom, incarnation_id incarnation) noexcept {
  const auto asked = [this, &whom, incarnation](std::uint64_t question) {
    {
      std::lock_guard lock(whom.mutex);
      whom.live.log_is_asked = false;
      if (!whom.present(incarnation) || !whom.live.guarded) return;
      whom.live.ask(question, clock::now());
    }
    failures_.keep_ticking(whom);
  };
  try {
    run_detached(*own_.threads, [this, kept = own_.keep_alive(), asked, incarnation] {
      std::uint64_t question = 0;
      try {
        (void)log_->append(member_entry::suspect(own_.incarnation, incarnation), deadline::after(store_limit));
        // Another member may have asked before, and died since.
        question = log_->view([&](const membership& there) {
          const group_member* const member = there.find(incarnation);
          return member ? member->suspected : 0;
        });
      } catch (const error& e) {
        log(log_level::info,
            fmt::format("{}: the group's log cannot be queried for a worker: {}", to_string(own_.self), e.what()));
      }
      asked(question);
    });
  } catch (const std::exception&) {
    asked(0);
  }
}

void dynamic_group::read_answer(peer& whom, incarnation_id incarnation) noexcept {
  std::uint64_t question = 0;
  {
    std::lock_guard lock(whom.mutex);
    question = whom.live.question;
  }
  const auto decided = [this, &whom, incarnation](bool answered) {
    {
      std::lock_guard lock(whom.mutex);
      whom.live.log_is_asked = false;
      if (whom.record->incarnation != incarnation) return;
      if (answered && whom.live.question != 0) whom.live.take_answer(clock::now());
      whom.live.asked_at = clock::now();
    }
    failures_.keep_ticking(whom);
  };
  try {
    run_detached(*own_.threads, [this, kept = own_.keep_alive(), decided, incarnation, question] {
      bool answered = false;
      try {
        const auto began = clock::now();
        log_->catch_up(deadline::after(store_limit));
        // A slow or unreachable store may have delayed the answer: wait for another lease then.
        const bool prompt = clock::now() - began < own_.options.heartbeat_interval.duration();
        answered = log_->view([&](const membership& there) {
          const group_member* const member = there.find(incarnation);
          return !member || member->suspected != question;
        });
        if (!answered && prompt) {
          (void)log_->append(
              member_entry::lost(own_.incarnation, incarnation,
                                 "no member can reach it, and it did not answer in the group's log", question),
              deadline::after(store_limit));
        }
      } catch (const error& e) {
        log(log_level::info, fmt::format("{}: the group's log cannot be read: {}", to_string(own_.self), e.what()));
      }
      decided(answered);
    });
  } catch (const std::exception&) {
    decided(false);
  }
}

// ---------------------------------------------------------------- leaving

void dynamic_group::leave_by_log(deadline until, leave_interrupt level) {
  own_.fence.check();
  shutdown_until_.store(until);
  log_own_leave(std::min(until, deadline::after(store_limit)), level);
  wait_until_quiet(until, level);
  settle_loose_ends(until);
}

void dynamic_group::log_own_leave(deadline until, leave_interrupt level) {
  try {
    leave_written_.store(true);
    const bool written =
        access_.run_in_time([this, until] { (void)log_->append(member_entry::leave(own_.incarnation), until); }, until,
                            [&] { return quiet_.interrupted(level); });
    if (!written && !quiet_.interrupted(level)) {
      log(log_level::info, fmt::format("{}: the store has no record yet that it leaves", to_string(own_.self)));
    }
  } catch (const error& e) {
    log(log_level::info, fmt::format("{}: the store has no record that it leaves: {}", to_string(own_.self), e.what()));
  }
}

// Releases its name and its id. Its join entry may be in the log, although it has not read that.
void dynamic_group::log_own_end() noexcept {
  if (!is_announced() || own_.fence.is_up() || gone_written_.exchange(true)) return;
  const deadline limit =
      std::min(deadline::after(store_limit), std::max(shutdown_until_.load(), deadline::after(least_for_end)));
  try {
    const bool written = access_.run_in_time(
        [this, limit] {
          (void)log_->append(member_entry::gone(own_.incarnation), limit);
          // The next group in this store may have other leases.
          if (log_->view([](const membership& there) { return !there.members().empty(); })) return;
          if (const auto where = group_store()) where->erase("kind", limit);
        },
        limit);
    if (!written)
      log(log_level::info, fmt::format("{}: the store has no record yet that it has left", to_string(own_.self)));
  } catch (const std::exception& e) {
    log(log_level::info,
        fmt::format("{}: the store has no record that it has left: {}", to_string(own_.self), e.what()));
  }
}

// A worker that leaves without a log entry has sent a goodbye to those it was connected to, if any; they write the
// entry for it.
void dynamic_group::write_gone(incarnation_id incarnation) {
  const auto until = deadline::after(store_limit);
  log_->catch_up(until);
  const bool present = log_->view([&](const membership& there) {
    const group_member* const member = there.find(incarnation);
    return member && !member->leaving;
  });
  if (present) (void)log_->append(member_entry::gone(incarnation), until);
}

void dynamic_group::begin_to_close() noexcept {
  if (log_ && !leave_written_.load()) log_own_end();
}

void dynamic_group::end() noexcept {
  if (!log_) return;
  log_own_end();
  if (follower_.joinable()) {
    if (const auto where = group_store()) where->close();
    follower_.join();
  }
  log_->release();
}

}  // namespace ferry::inline v0::detail

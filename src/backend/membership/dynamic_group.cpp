// How workers join and leave a dynamic group: entries of its log (member_log.hpp), which every member reads. Joining
// and leaving wait for no other member, except for one that holds the requested name or id and does not answer.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../agent/native_agent.hpp"
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

}  // namespace

// ---------------------------------------------------------------- joining

void native_core::form_dynamic(deadline until) {
  agree_on_group(until);
  log_ = std::make_unique<member_log>(group_store(), [this](const membership_change& change) { take(change); });
  log_->load(until);
  choose_id();
  for (;;) {
    make_room(until);
    choose_id();
    check_devices_fit();
    // Other workers may read this worker's entry, and connect, before it has read its place in the order; and one that
    // looks for a predecessor may find it as soon as it listens.
    announced_.store(~std::uint64_t{0});
    listen();
    const auto change = log_->append(member_entry::join(own_record()), until);
    // Others may have read the entry, and removed it, before this worker saw that it was accepted.
    if (change == membership_change::kind::joined || joined_.load() != 0) break;
    announced_.store(0);
    stop_listening();  // another worker took the name or the id first, or has joined with device maps that conflict
  }
  follower_ = std::thread([this] { follow(); });
  watch_next();
}

void native_core::choose_id() {
  if (wanted_id_ == any_rank) self_ = worker_info(self_.name(), log_->members().lowest_free_id());
}

void native_core::make_room(deadline until) {
  // A lease, as among members; without leases as long as starting may take.
  const auto a_lease = [&] { return options_.heartbeat_interval.is_never() ? until : deadline::after(options_.lease); };
  auto lease_wait = a_lease();
  for (;;) {
    const membership there = log_->members();
    const worker_record* same_name = there.find(self_.name());
    const worker_record* holder = same_name;
    if (!holder && wanted_id_ != any_rank) holder = there.find(worker_id{wanted_id_});
    if (!holder) return;
    const connect_outcome outcome = probe(*holder, std::min(lease_wait, until));
    const bool on_this_machine = !host_.empty() && host_ == holder->host;
    const bool patient = !lease_wait.expired() && !until.expired();
    switch (outcome.verdict) {
      case connect_verdict::gone:  // on another machine the address may be the wrong one
      case connect_verdict::unknown:
        if (outcome.verdict == connect_verdict::unknown && outcome.answered) break;
        if (patient && !(outcome.verdict == connect_verdict::gone && on_this_machine)) {
          (void)log_->wait(deadline::after(entry_poll_pause));
          log_->catch_up(last_look(until));
        } else {
          (void)log_->append(member_entry::lost({}, holder->incarnation,
                                                fmt::format("'{}' takes its place: {}", self_.name(), outcome.why)),
                             last_look(until));
        }
        continue;
      case connect_verdict::exhausted:
        if (!patient) {
          throw_error(errc::resource_exhausted,
                      fmt::format("cannot find out whether '{}', whose place it takes, lives: {}", holder->who.name(),
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
    if (holder->leaving) throw_still_leaving(*holder, same_name != nullptr);
    const std::string why = outcome.why.empty() ? std::string() : fmt::format(" ({})", outcome.why);
    if (same_name) {
      throw_error(errc::duplicate_name, fmt::format("worker name '{}' is not unique: {} has it, and is alive{}",
                                                    self_.name(), to_string(holder->who), why));
    }
    throw_error(errc::duplicate_id, fmt::format("worker id {} is not unique: {} has it, and is alive{}", wanted_id_,
                                                to_string(holder->who), why));
  }
}

void native_core::throw_still_leaving(const worker_record& holder, bool by_name) const {
  throw_error(by_name ? errc::duplicate_name : errc::duplicate_id,
              fmt::format("worker {} is not free yet: {} is leaving the group and still has calls to end at "
                          "init_timeout. Choose another one, or raise init_timeout",
                          by_name ? fmt::format("name '{}'", self_.name()) : fmt::format("id {}", wanted_id_),
                          to_string(holder.who)));
}

// Whether a member lives, probed by a non-member: it refuses the connection, which is an answer. Blocks.
connect_outcome native_core::probe(const worker_record& holder, deadline until) {
  struct answer {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<connect_outcome> outcome;
  };
  auto state = std::make_shared<answer>();
  const auto limit = until.is_never() ? std::chrono::nanoseconds(std::chrono::hours(1))
                                      : std::max<std::chrono::nanoseconds>(until.remaining(), entry_poll_pause);
  attempt_to_reach(
      holder, feature_control, limit, [] { return true; },
      [state](connect_outcome outcome) {
        if (outcome.opened)
          outcome.opened->close(make_error(errc::shutting_down, "the connection only probed whether the worker lives"));
        const std::lock_guard lock(state->mutex);
        state->outcome = std::move(outcome);
        state->there.notify_all();
      })
      ->start(*reactor_);
  const blocking_scope blocking;
  std::unique_lock lock(state->mutex);
  state->there.wait(lock, [&] { return state->outcome.has_value(); });
  return *std::move(state->outcome);
}

// ---------------------------------------------------------------- changes from the log

// Called by the log, in the order of its entries. Throws std::bad_alloc before anything has changed, then is called
// again with the same change.
void native_core::take(const membership_change& change) {
  if (change.what == membership_change::kind::none) return;
  try {
    if (change.record.incarnation == incarnation_) {
      take_own(change);
    } else {
      take_others(change);
    }
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: a change of the group was not handled: {}", self_.name(), e.what()));
  }
  wake_waiting();
  if (is_member()) watch_next();
}

void native_core::take_own(const membership_change& change) {
  const worker_record& record = change.record;
  switch (change.what) {
    case membership_change::kind::joined: {
      const member_event event{member_event::kind::joined, record.who, record.incarnation, {}};
      const std::vector<peer*> others = peers_.all();
      // The snapshot has the query, but its entry may be gone.
      if (record.suspected != 0) answer_suspicion();
      admit(record);
      announced_.store(record.joined);
      for (peer* each : others) {  // the duration of the join does not count as their silence
        const std::lock_guard lock(each->mutex);
        each->live.allow_for_delay(clock::now());
      }
      joined_.store(record.joined);
      return report(event);
    }
    case membership_change::kind::suspected: return answer_suspicion();
    case membership_change::kind::gone:
      if (gone_written_.load()) return;
      [[fallthrough]];
    case membership_change::kind::lost:
      return accept_fence(change.reason.empty() ? "the group's log does not list it as a member" : change.reason);
    case membership_change::kind::none:
    case membership_change::kind::left:
    case membership_change::kind::answered: return;
  }
}

void native_core::answer_suspicion() {
  access_.add_write([this] { (void)log_->append(member_entry::alive(incarnation_), deadline::after(store_limit)); },
                    "it lives", true);
}

void native_core::take_others(const membership_change& change) {
  const worker_record& record = change.record;
  peer& place = peers_.place(record.who.id());
  switch (change.what) {
    case membership_change::kind::joined: {
      const member_event event{member_event::kind::joined, record.who, record.incarnation, {}};
      admit(record);
      if (!record.leaving) return report(event);
      [[fallthrough]];
    }
    case membership_change::kind::left: {
      if (!record.leaving || change.what == membership_change::kind::left) {
        record_departure(place, record.incarnation, "it has left the group", departure::begun);
      }
      std::lock_guard lock(place.mutex);
      if (place.record.incarnation == record.incarnation && place.state != peer_state::lost)
        place.state = peer_state::leaving;
      group_changes_.fetch_add(1, std::memory_order_release);
      return;
    }
    case membership_change::kind::gone: {
      if (!record.leaving) {
        return record_departure(place, record.incarnation, "it has left the group", departure::in_log);
      }
      {
        std::lock_guard lock(place.mutex);
        if (place.record.incarnation != record.incarnation || !place.present()) return;
        place.state = peer_state::left;
        group_changes_.fetch_add(1, std::memory_order_release);
        place.live.renew(clock::now());
      }
      return report_end(record.who.id(), record.incarnation);
    }
    case membership_change::kind::lost:
      // Losses before this worker joined are not its own.
      if (!is_member()) return record_departure(place, record.incarnation, change.reason, departure::in_log);
      return declare_lost(place, record.incarnation, change.reason, evidence::record);
    case membership_change::kind::answered: {
      std::lock_guard lock(place.mutex);
      if (place.record.incarnation == record.incarnation && place.live.question != 0)
        place.live.take_answer(clock::now());
      return;
    }
    case membership_change::kind::none:
    case membership_change::kind::suspected: return;
  }
}

void native_core::follow() noexcept {
  auto pause = entry_poll_pause;
  bool reported = false;
  while (!closing_.load()) {
    try {
      log_->catch_up(deadline::after(store_limit));
      (void)log_->wait(deadline::after(longest_wait_for_news(options_.lease)));
      pause = entry_poll_pause;
      reported = false;
      continue;
    } catch (const std::exception& e) {
      if (closing_.load()) return;
      if (!std::exchange(reported, true)) {
        log(log_level::warning,
            fmt::format("{} cannot read which workers join or leave until the store can be reached: {}",
                        to_string(self_), e.what()));
      }
    }
    access_.pause(pause);
    // The log may contain a query for this worker, so the pause must stay below the lease.
    const auto longest = std::max(entry_poll_pause,
                                  std::chrono::duration_cast<std::chrono::milliseconds>(options_.lease.duration() / 4));
    pause = std::min<std::chrono::milliseconds>(2 * pause, std::min<std::chrono::milliseconds>(longest, 2s));
  }
}

bool native_core::catch_up() noexcept {
  try {
    log_->catch_up(deadline::after(store_limit));
    return true;
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: the group's log cannot be read: {}", to_string(self_), e.what()));
    return false;
  }
}

// Members watch each other in a ring by id: each has one watcher, and watches one. A worker that resumes after its
// death was recorded is not watched any more.
void native_core::watch_next() noexcept {
  if (options_.heartbeat_interval.is_never()) return;
  try {
    std::lock_guard watching(ring_mutex_);
    // Found within a few steps: this runs at every change of the group.
    peer* next = peers_.next_after(self_.id(), [](const peer& each) {
      std::lock_guard lock(each.mutex);
      return each.present();
    });
    peer* before = std::exchange(watched_, next);
    if (before && before != next) {
      std::lock_guard lock(before->mutex);
      before->live.guarded = false;
      before->live.question = 0;
    }
    if (next) await(*next);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{} cannot watch the next member: {}", to_string(self_), e.what()));
  }
}

// ---------------------------------------------------------------- unreachable members

void native_core::ask_log(peer& whom, incarnation_id incarnation) noexcept {
  const auto asked = [this, &whom, incarnation](std::uint64_t question) {
    {
      std::lock_guard lock(whom.mutex);
      whom.live.log_is_asked = false;
      if (!whom.present(incarnation) || !whom.live.guarded) return;
      whom.live.question = question;
      whom.live.asked_at = whom.live.unreached_since = clock::now();
    }
    keep_ticking();
  };
  try {
    run_detached(*reactor_, [self = shared_from_this(), asked, incarnation] {
      std::uint64_t question = 0;
      try {
        (void)self->log_->append(member_entry::suspect(self->incarnation_, incarnation), deadline::after(store_limit));
        // Another member may have asked before, and died since.
        const membership there = self->log_->members();
        if (const worker_record* record = there.find(incarnation)) question = record->suspected;
      } catch (const error& e) {
        log(log_level::info,
            fmt::format("{}: the group's log cannot be queried for a worker: {}", to_string(self->self_), e.what()));
      }
      asked(question);
    });
  } catch (const std::exception&) {
    asked(0);
  }
}

void native_core::read_answer(peer& whom, incarnation_id incarnation) noexcept {
  std::uint64_t question = 0;
  {
    std::lock_guard lock(whom.mutex);
    question = whom.live.question;
  }
  const auto decided = [this, &whom, incarnation](bool answered) {
    {
      std::lock_guard lock(whom.mutex);
      whom.live.log_is_asked = false;
      if (whom.record.incarnation != incarnation) return;
      if (answered && whom.live.question != 0) whom.live.take_answer(clock::now());
      whom.live.asked_at = clock::now();
    }
    keep_ticking();
  };
  try {
    run_detached(*reactor_, [self = shared_from_this(), decided, incarnation, question] {
      bool answered = false;
      try {
        const auto began = clock::now();
        self->log_->catch_up(deadline::after(store_limit));
        // A slow or unreachable store may have delayed the answer: wait for another lease then.
        const bool prompt = clock::now() - began < self->options_.heartbeat_interval.duration();
        const membership there = self->log_->members();
        const worker_record* record = there.find(incarnation);
        answered = !record || record->suspected != question;
        if (!answered && prompt) {
          (void)self->log_->append(
              member_entry::lost(self->incarnation_, incarnation,
                                 "no member can reach it, and it did not answer in the group's log", question),
              deadline::after(store_limit));
        }
      } catch (const error& e) {
        log(log_level::info, fmt::format("{}: the group's log cannot be read: {}", to_string(self->self_), e.what()));
      }
      decided(answered);
    });
  } catch (const std::exception&) {
    decided(false);
  }
}

// ---------------------------------------------------------------- leaving

void native_core::leave_dynamic(deadline until, leave_interrupt level) {
  fence_.check();
  shutdown_until_.store(until);
  log_own_leave(std::min(until, deadline::after(store_limit)), level);
  wait_until_quiet(until, level);
  settle_loose_ends(until);
}

void native_core::log_own_leave(deadline until, leave_interrupt level) {
  try {
    leave_written_.store(true);
    const bool written =
        access_.run_in_time([this, until] { (void)log_->append(member_entry::leave(incarnation_), until); }, until,
                            [&] { return quiet_.interrupted(level); });
    if (!written && !quiet_.interrupted(level)) {
      log(log_level::info, fmt::format("{}: the store has no record yet that it leaves", to_string(self_)));
    }
  } catch (const error& e) {
    log(log_level::info, fmt::format("{}: the store has no record that it leaves: {}", to_string(self_), e.what()));
  }
}

// Releases its name and its id. Its join entry may be in the log, although it has not read that.
void native_core::log_own_end() noexcept {
  if (!is_announced() || fence_.is_up() || gone_written_.exchange(true)) return;
  const deadline limit =
      std::min(deadline::after(store_limit), std::max(shutdown_until_.load(), deadline::after(least_for_end)));
  try {
    const bool written = access_.run_in_time(
        [this, limit] {
          (void)log_->append(member_entry::gone(incarnation_), limit);
          // The next group in this store may have other leases.
          if (!log_->members().members().empty()) return;
          if (const auto where = group_store()) where->erase("kind", limit);
        },
        limit);
    if (!written)
      log(log_level::info, fmt::format("{}: the store has no record yet that it has left", to_string(self_)));
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: the store has no record that it has left: {}", to_string(self_), e.what()));
  }
}

// A worker that leaves without a log entry has sent a goodbye to those it was connected to, if any; they write the
// entry for it.
void native_core::write_gone(incarnation_id incarnation) {
  const auto until = deadline::after(store_limit);
  log_->catch_up(until);
  const membership there = log_->members();
  const worker_record* record = there.find(incarnation);
  if (record && !record->leaving) (void)log_->append(member_entry::gone(incarnation), until);
}

void native_core::stop_following() noexcept {
  if (!log_) return;
  log_own_end();
  if (follower_.joinable()) {
    if (const auto where = group_store()) where->close();
    follower_.join();
  }
  log_->release();
}

}  // namespace ferry::inline v0::detail

// How workers join and leave a dynamic group: entries of its log (member_log.hpp), which every member reads. Nobody waits for
// anybody, but for those whose name or id is wanted and who do not answer.

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds longest_pause{50};
constexpr std::chrono::seconds store_limit{5};  // for what a member asks the store

}  // namespace

// ---------------------------------------------------------------- joining

void native_core::form_dynamic(deadline until) {
  agree_on_group();
  log_ = std::make_unique<member_log>(store_, [this](const membership_change& change) { take(change); });
  log_->load();
  choose_id();
  for (;;) {
    make_room(until);
    choose_id();
    listen();
    // Others may hear of this worker, and it of them, before it knows its place in the order.
    announced_.store(~std::uint64_t{0});
    const auto change = log_->append(member_entry::join({self_, life_, host_, advertised_, metadata_, 0}));
    if (change.what == membership_change::kind::joined) break;
    announced_.store(0);
    stop_listening();  // another one was quicker to take the name or the id
  }
  store_->set_default_timeout(store_limit);
  follower_ = std::thread([this] { follow(); });
  watch_next();
}

void native_core::choose_id() {
  if (wanted_id_ == any_rank) self_ = worker_info(self_.name(), log_->members().lowest_free_id());
}

void native_core::make_room(deadline until) {
  // A lease, as among members; without leases as long as it may take to start.
  const auto patience = options_.heartbeat_interval.is_never() ? until : deadline::after(options_.lease);
  for (;;) {
    const membership there = log_->members();
    const worker_record* same_name = there.find(self_.name());
    const worker_record* holder = same_name;
    if (!holder && wanted_id_ != any_rank) holder = there.find(worker_id{wanted_id_});
    if (!holder) return;
    const connect_outcome outcome = probe(*holder, std::min(patience, until));
    const bool on_this_machine = !host_.empty() && host_ == holder->host;
    const bool patient = !patience.expired() && !until.expired();
    switch (outcome.verdict) {
      case connect_verdict::gone:  // elsewhere it may be the wrong place that says so
      case connect_verdict::unknown:
        if (outcome.verdict == connect_verdict::unknown && outcome.answered) break;
        if (patient && !(outcome.verdict == connect_verdict::gone && on_this_machine)) {
          (void)log_->wait(deadline::after(longest_pause));
          log_->catch_up();
        } else {
          (void)log_->append(
              member_entry::lost({}, holder->life, fmt::format("'{}' takes its place: {}", self_.name(), outcome.why)));
        }
        continue;
      case connect_verdict::leaving:
      case connect_verdict::hung_up:  // soon the answer will be clear
        if (!patient) break;
        (void)log_->wait(deadline::after(longest_pause));
        log_->catch_up();
        continue;
      case connect_verdict::opened:
      case connect_verdict::fenced: break;
    }
    const std::string why = outcome.why.empty() ? std::string() : fmt::format(" ({})", outcome.why);
    if (same_name) {
      throw_error(errc::duplicate_name, fmt::format("worker name '{}' is not unique: {} has it, and lives{}",
                                                    self_.name(), to_string(holder->who), why));
    }
    throw_error(errc::duplicate_id, fmt::format("worker id {} is not unique: {} has it, and lives{}", wanted_id_,
                                                to_string(holder->who), why));
  }
}

// Whether a member lives, found out by one that is none: it is refused, which is an answer. Blocks.
connect_outcome native_core::probe(const worker_record& holder, deadline until) {
  struct answer {
    std::mutex mutex;
    std::condition_variable there;
    std::optional<connect_outcome> outcome;
  };
  auto state = std::make_shared<answer>();
  const auto limit = until.is_never() ? std::chrono::nanoseconds(std::chrono::hours(1))
                                      : std::max<std::chrono::nanoseconds>(until.remaining(), longest_pause);
  attempt_to_reach(
      holder, true, limit, [] { return true; },
      [state](connect_outcome outcome) {
        if (outcome.opened)
          outcome.opened->close(make_error(errc::shutting_down, "it was only asked whether it lives"));
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

// ---------------------------------------------------------------- being told

// Called by the log, in the order of its entries.
void native_core::take(const membership_change& change) noexcept {
  try {
    const worker_record& record = change.record;
    const bool own = record.life == life_;
    switch (change.what) {
      case membership_change::kind::none: return;
      case membership_change::kind::joined:
        peers_.admit(record);
        if (own) {
          announced_.store(record.joined);
          joined_.store(record.joined);
        }
        tell({member_event::kind::joined, record.who, record.life, {}});
        break;
      case membership_change::kind::left:
        if (own && leave_written_.load()) break;
        [[fallthrough]];
      case membership_change::kind::lost:
        if (own) {
          become_fenced(change.reason.empty() ? "the group's log says that it is no member" : change.reason);
        } else if (change.what == membership_change::kind::left || joined_.load() == 0) {
          // What was before this worker joined is no loss of its own.
          depart(peers_.place(record.who.id()), record.life,
                 change.reason.empty() ? "it has left the group" : change.reason);
        } else {
          lose(peers_.place(record.who.id()), record.life, change.reason, evidence::record);
        }
        break;
    }
    wake_waiting();
    if (joined_.load() != 0) watch_next();
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{}: a change of the group got lost: {}", self_.name(), e.what()));
  }
}

void native_core::follow() noexcept {
  auto pause = longest_pause;
  bool told = false;
  while (!closing_.load()) {
    try {
      log_->catch_up();
      (void)log_->wait();
      pause = longest_pause;
      told = false;
      continue;
    } catch (const std::exception& e) {
      if (closing_.load()) return;
      if (!std::exchange(told, true)) {
        log(log_level::warning,
            fmt::format("{} does not hear of workers that join or leave, until the store can be reached: {}",
                        to_string(self_), e.what()));
      }
    }
    std::unique_lock lock(members_mutex_);
    (void)members_changed_.wait_for(lock, pause, [&] { return closing_.load(); });
    pause = std::min<std::chrono::milliseconds>(2 * pause, std::chrono::seconds(2));
  }
}

void native_core::catch_up() const noexcept {
  try {
    log_->catch_up();
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: the group's log cannot be read: {}", to_string(self_), e.what()));
  }
}

// In a ring by id, so that a member has one watcher, and one that it watches. A worker that wakes after its death was told is
// not watched any more.
void native_core::watch_next() noexcept {
  if (options_.heartbeat_interval.is_never()) return;
  try {
    std::lock_guard watching(watched_mutex_);
    peer* next = nullptr;
    for (peer* each : peers_.all()) {
      if (each->id == self_.id()) continue;
      {
        std::lock_guard lock(each->mutex);
        if (each->state != peer_state::member) continue;
      }
      if (!next || (next->id < self_.id() && self_.id() < each->id)) next = each;
    }
    peer* before = std::exchange(watched_, next);
    if (before && before != next) {
      std::lock_guard lock(before->mutex);
      before->live.guarded = false;
    }
    if (next) await(*next);
  } catch (const std::exception& e) {
    log(log_level::error, fmt::format("{} watches nobody: {}", to_string(self_), e.what()));
  }
}

// ---------------------------------------------------------------- parting

void native_core::leave_dynamic(deadline until) {
  if (fenced_.load(std::memory_order_acquire)) throw_error(errc::fenced, fence_reason_);
  leaving_stopped_.store(false);
  try {
    leave_written_.store(true);
    (void)log_->append(member_entry::leave(life_));
    // The next group here may have other leases.
    if (log_->members().members().empty()) store_->erase("kind");
  } catch (const error& e) {
    log(log_level::info, fmt::format("{}: the store does not know that it leaves: {}", to_string(self_), e.what()));
  }
  wait_until_quiet(until);
}

void native_core::wake_waiting() noexcept {
  {
    std::lock_guard lock(members_mutex_);
    ++member_changes_;
  }
  members_changed_.notify_all();
}

// Whoever leaves without a word in the log has said farewell to those it was connected to, if to anybody.
void native_core::write_leave(incarnation life) noexcept {
  try {
    if (log_->members().find(life)) (void)log_->append(member_entry::leave(life));
  } catch (const std::exception& e) {
    log(log_level::info, fmt::format("{}: the store does not know of a leave: {}", to_string(self_), e.what()));
  }
}

void native_core::stop_following() noexcept {
  if (!log_) return;
  wake_waiting();
  if (joined_.load() != 0 && !leave_written_.exchange(true) && !fenced_.load()) write_leave(life_);
  if (follower_.joinable()) {
    if (const auto where = group_store()) where->close();
    follower_.join();
  }
  log_->release();
}

}  // namespace ferry::inline v0::detail

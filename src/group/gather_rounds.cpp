#include "gather_rounds.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_names = 8;     // in an error text
constexpr std::size_t most_ended = 1024;  // completed rounds that are recorded while an earlier round is incomplete
constexpr std::size_t many_sets = 1024;

// A worker that rejoins is a member before this worker's observers receive the join event, or even the preceding leave
// event.
bool is_back(const ferry::agent& group, const std::string& name) {
  if (!group.dynamic()) return false;  // the member list of a static group never changes
  const auto there = group.workers();
  return std::any_of(there.begin(), there.end(), [&](const worker_info& each) { return each.name() == name; });
}

const char* operation_of(std::uint64_t type) { return type == 0 ? "barrier" : "all_gather"; }

}  // namespace

std::string list_names(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most_names));
  std::string text = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (names.size() > most_names) text += fmt::format(" and {} more", names.size() - most_names);
  return text;
}

// Owned by the waiting member. The timer owns its item from when it fires.
class gather_rounds::time_limit {
 public:
  time_limit(std::shared_ptr<reactor> timers, deadline until, place where)
      : timers_(std::move(timers)), item_(new item) {
    item_->where = std::move(where);
    item_->run = [](work* self) noexcept {
      const std::unique_ptr<item> owned(static_cast<item*>(self));
      if (const auto rounds = owned->where.rounds.lock()) rounds->give_up(owned->where, true);
    };
    try {
      id_ = timers_->start_timer(until, item_);
    } catch (...) {
      delete item_;
      throw;
    }
  }
  ~time_limit() {
    if (timers_->cancel_timer(id_)) delete item_;
  }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;

 private:
  struct item : work {
    place where;
  };
  const std::shared_ptr<reactor> timers_;
  item* const item_;
  timer_id id_ = timer_id::none;
};

void gather_rounds::departure::operator()() const noexcept {
  const place own = where;  // *this is destroyed with the round
  if (const auto rounds = own.rounds.lock()) rounds->give_up(own, false);
}

std::shared_ptr<gather_rounds> gather_rounds::of(worker_core& worker) {
  static const char key = 0;
  auto own = worker.attached<gather_rounds>(&key);
  std::call_once(own->observes_, [&] {
    worker.observe_members(
        [weak = own->weak_from_this(), weak_worker = worker.weak_from_this()](const member_event& event) {
          const auto rounds = weak.lock();
          const auto whose = weak_worker.lock();
          if (!rounds || !whose) return;
          const bool ends = event.what == member_event::kind::left || event.what == member_event::kind::lost;
          if (ends && is_back(whose->agent_unchecked(), event.who.name())) return;
          switch (event.what) {
            case member_event::kind::joined: return rounds->on_joined(event.who);
            case member_event::kind::left: return rounds->on_gone(event.who, "has left the group");
            case member_event::kind::lost: return rounds->on_gone(event.who, "is dead: " + event.reason);
            case member_event::kind::fenced: return;
          }
        },
        true);
  });
  return own;
}

// ---------------------------------------------------------------- the member's side

gather_rounds::turn gather_rounds::take_turn(const member_set& set) {
  std::lock_guard lock(mutex_);
  set_state& state = sets_[set];
  ++state.under_way;
  return {state.counts ? state.next++ : 0, state.counts};
}

void gather_rounds::answered(const member_set& set, const turn& taken, std::uint64_t round) {
  std::lock_guard lock(mutex_);
  set_state& state = sets_[set];
  if (taken.counts && taken.round != round) {
    state.counts = false;
    state.next = 0;
  }
  state.next = std::max(state.next, round + 1);
  // While calls are pending whose round the collecting worker chooses, this worker does not know the number of the next
  // round.
  if (--state.under_way == 0) state.counts = true;
}

void gather_rounds::not_answered(const member_set& set) {
  std::lock_guard lock(mutex_);
  set_state& state = sets_[set];
  --state.under_way;
  state.counts = false;
  state.next = 0;
  forget_if_idle(set);
}

// ---------------------------------------------------------------- the collecting side

bool gather_rounds::is_over(const set_state& set, std::uint64_t round) {
  return round < set.open || set.ended.count(round) != 0;
}

std::uint64_t gather_rounds::next_for(const set_state& set, const std::string& member) {
  for (const auto& [round, state] : set.waiting) {
    if (state.members.count(member) == 0) return round;
  }
  std::uint64_t round = set.open;
  while (set.ended.count(round) != 0 || set.waiting.count(round) != 0) ++round;
  return round;
}

gather_rounds::round_state gather_rounds::end_round(const member_set& set, std::uint64_t round) {
  set_state& state = sets_[set];
  round_state ended = std::move(state.waiting.extract(round).mapped());
  state.ended.insert(round);
  if (state.ended.size() > most_ended) state.open = *state.ended.begin();
  while (!state.ended.empty() && *state.ended.begin() == state.open) {
    state.ended.erase(state.ended.begin());
    ++state.open;
  }
  forget_if_idle(set);
  return ended;
}

void gather_rounds::forget_if_idle(const member_set& set) {
  const auto found = sets_.find(set);
  const set_state& state = found->second;
  // Keep a set in which this worker itself gathers, with its count: the program bounds their number. Any peer can make
  // up other sets.
  if (sets_.size() > many_sets && state.waiting.empty() && state.under_way == 0 && !state.counts) sets_.erase(found);
}

future<gather_answer> gather_rounds::arrive(const gather_arrival& arrival, const std::string& from,
                                            const ferry::agent& group, const std::stop_token& gone) {
  const auto refuse = [](gather_result result) {
    return make_ready_future(gather_answer{std::make_shared<const gather_result>(std::move(result))});
  };
  const std::string& collecting = arrival.members.front();
  const deadline until =
      arrival.left_us == 0 ? deadline() : deadline::after(std::chrono::microseconds(arrival.left_us));
  end_late_rounds(arrival);
  std::shared_ptr<time_limit> limit;  // these two are destroyed without the mutex held
  std::unique_ptr<std::stop_callback<departure>> watch;
  round_state ended;
  gather_result result;
  future<gather_answer> answer_to_come;
  place where{weak_from_this(), arrival.members, 0, from};
  {
    std::lock_guard lock(mutex_);
    // If this member joined now, its departure would also end the round for members that have arrived since, including
    // its successor.
    if (gone.stop_requested()) {
      result.error = static_cast<std::uint32_t>(errc::call_cancelled);
      result.text = fmt::format("{} was lost, or cancelled its call, before the call was handled", from);
      return refuse(std::move(result));
    }
    set_state& set = sets_[arrival.members];
    // A member that counts rounds of another incarnation of this worker is not in `known`.
    where.round = set.known.insert(from).second || !arrival.counts ? next_for(set, from) : arrival.round;
    if (is_over(set, where.round)) {
      result.error = static_cast<std::uint32_t>(errc::group_mismatch);
      result.text =
          fmt::format("the {} that {} was to join has ended without it; its next call joins the current round",
                      operation_of(arrival.type), from);
      result.round = next_for(set, from) - 1;
      return refuse(std::move(result));
    }
    round_state& round = set.waiting[where.round];
    if (round.members.count(from) != 0) {
      throw_error(errc::invalid_argument, fmt::format("{} takes part in round {} of the set {} twice", from,
                                                      where.round, list_names(arrival.members)));
    }
    waiting_member& member = round.members[from];
    member.value = arrival.value;
    member.type = arrival.type;
    member.limit_us = arrival.limit_us;
    member.until = until;
    member.answered = &arrival.answered;
    answer_to_come = member.answer.get_future();

    result.round = where.round;
    if (round.members.size() == arrival.members.size()) {
      const auto other = std::find_if(round.members.begin(), round.members.end(),
                                      [&](const auto& each) { return each.second.type != arrival.type; });
      if (other != round.members.end()) {
        result.error = static_cast<std::uint32_t>(errc::group_mismatch);
        result.text =
            fmt::format("{} and {} gather different types, or one of them called barrier()", from, other->first);
      } else if (arrival.type != 0) {
        for (auto& [name, each] : round.members) result.values.push_back(std::move(each.value));
      }
      ended = end_round(arrival.members, where.round);
    } else if (std::string why = gone_of(arrival.members, round, group); !why.empty()) {
      result.error = static_cast<std::uint32_t>(errc::peer_lost);
      result.text = std::move(why);
      ended = end_round(arrival.members, where.round);
    }
  }
  if (!ended.members.empty()) {
    answer(std::move(ended), collecting, std::move(result));
    return answer_to_come;
  }
  if (!until.is_never()) {
    limit = std::make_shared<time_limit>(group.reactor(), until, where);
  }
  watch = std::make_unique<std::stop_callback<departure>>(gone, departure{where});
  {
    std::lock_guard lock(mutex_);
    const auto set = sets_.find(where.set);
    if (set == sets_.end()) return answer_to_come;
    const auto round = set->second.waiting.find(where.round);
    if (round == set->second.waiting.end()) return answer_to_come;
    waiting_member& member = round->second.members.at(from);
    member.limit = std::move(limit);
    member.watch = std::move(watch);
  }
  return answer_to_come;
}

std::string gather_rounds::gone_of(const member_set& set, const round_state& round, const ferry::agent& group) const {
  if (gone_.empty()) return {};
  for (const std::string& name : set) {
    if (round.members.count(name) != 0) continue;
    if (const auto gone = gone_.find(name); gone != gone_.end() && !is_back(group, name))
      return fmt::format("{}, which had not called it, {}", name, gone->second.what);
  }
  return {};
}

void gather_rounds::forget_gone(worker_id id) noexcept {
  const auto found = gone_names_.find(id);
  if (found == gone_names_.end()) return;
  gone_.erase(found->second);
  gone_names_.erase(found);
}

void gather_rounds::on_joined(const worker_info& who) noexcept {
  std::lock_guard lock(mutex_);
  forget_gone(who.id());
  if (const auto found = gone_.find(who.name()); found != gone_.end()) forget_gone(found->second.id);
}

std::vector<std::string> gather_rounds::gone_names() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> result;
  for (const auto& [name, gone] : gone_) result.push_back(name);
  return result;
}

void gather_rounds::on_gone(const worker_info& who, const std::string& what) noexcept {
  const std::string& name = who.name();
  struct over {
    std::string collecting;
    round_state round;
    gather_result result;
  };
  std::vector<over> all;
  {
    std::lock_guard lock(mutex_);
    forget_gone(who.id());
    if (const auto found = gone_.find(name); found != gone_.end()) forget_gone(found->second.id);
    gone_.insert_or_assign(name, gone_worker{who.id(), what});
    gone_names_.insert_or_assign(who.id(), name);
    std::vector<std::pair<member_set, std::uint64_t>> places;
    for (const auto& [set, state] : sets_) {
      if (!std::binary_search(set.begin(), set.end(), name)) continue;
      for (const auto& [number, round] : state.waiting) {
        if (round.members.count(name) == 0) places.emplace_back(set, number);
      }
    }
    for (auto& [set, number] : places) {
      gather_result result;
      result.error = static_cast<std::uint32_t>(errc::peer_lost);
      result.text = fmt::format("{}, which had not called it, {}", name, what);
      result.round = number;
      all.push_back({set.front(), end_round(set, number), std::move(result)});
    }
  }
  for (over& each : all) answer(std::move(each.round), each.collecting, std::move(each.result));
}

void gather_rounds::end_late_rounds(const gather_arrival& arrival) {
  std::vector<place> late;
  {
    std::lock_guard lock(mutex_);
    const auto set = sets_.find(arrival.members);
    if (set == sets_.end()) return;
    for (const auto& [round, state] : set->second.waiting) {
      for (const auto& [name, member] : state.members) {
        if (member.until.expired()) {
          late.push_back({weak_from_this(), arrival.members, round, name});
          break;
        }
      }
    }
  }
  for (const place& each : late) give_up(each, true);
}

void gather_rounds::give_up(const place& where, bool timed_out) noexcept {
  round_state ended;
  gather_result result;
  {
    std::lock_guard lock(mutex_);
    const auto set = sets_.find(where.set);
    if (set == sets_.end()) return;
    const auto round = set->second.waiting.find(where.round);
    // The set may have been forgotten since: its rounds are then numbered from zero again.
    if (round == set->second.waiting.end() || round->second.members.count(where.member) == 0) return;
    ended = end_round(where.set, where.round);
  }
  std::vector<std::string> missing;
  for (const std::string& name : where.set) {
    if (ended.members.count(name) == 0) missing.push_back(name);
  }
  const waiting_member& first = ended.members.at(where.member);
  result.round = where.round;
  if (timed_out) {
    result.error = static_cast<std::uint32_t>(errc::rpc_timeout);
    result.text =
        fmt::format("timed out in {} after {:.2f} seconds (the limit of {}); missing: {}", operation_of(first.type),
                    static_cast<double>(first.limit_us) / 1e6, where.member, list_names(missing));
  } else {
    result.error = static_cast<std::uint32_t>(errc::peer_lost);
    result.text =
        fmt::format("{} was lost, or cancelled its call, while it waited for {}", where.member, list_names(missing));
  }
  answer(std::move(ended), where.set.front(), std::move(result));
}

void gather_rounds::answer(round_state ended, const std::string& collecting, gather_result result) {
  const gather_answer shared{std::make_shared<const gather_result>(std::move(result))};
  // Other threads send the answers. An arrival is destroyed once its answer has been sent; destroying the last one
  // answers the collecting worker itself, which may shut down as soon as it is answered.
  struct last_answer {
    promise<gather_answer> answer;
    gather_answer value;
    last_answer(promise<gather_answer> a, gather_answer v) noexcept : answer(std::move(a)), value(std::move(v)) {}
    ~last_answer() { answer.try_set_value(std::move(value)); }
    last_answer(const last_answer&) = delete;
    last_answer& operator=(const last_answer&) = delete;
  };
  std::shared_ptr<last_answer> last;
  if (const auto own = ended.members.find(collecting); own != ended.members.end()) {
    last = std::make_shared<last_answer>(std::move(own->second.answer), shared);
    ended.members.erase(own);
  }
  for (auto& [name, member] : ended.members) {
    *member.answered = last;
    member.answer.try_set_value(shared);
  }
}

std::size_t gather_rounds::waiting_members() const {
  std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const auto& [names, set] : sets_) {
    for (const auto& [number, round] : set.waiting) count += round.members.size();
  }
  return count;
}

}  // namespace ferry::inline v0::detail

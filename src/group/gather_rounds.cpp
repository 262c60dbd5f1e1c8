#include "gather_rounds.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <new>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ferry/base/log.hpp>

#include "../base/printable.hpp"
#include "../rpc/diagnostics/collective_sources.hpp"
#include "../rpc/worker/worker_core.hpp"
#include "../transport/reactor/time_limit.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t most_names = 8;     // in an error text
constexpr std::size_t most_ended = 1024;  // completed rounds that are recorded while an earlier round is incomplete
constexpr std::size_t many_sets = 1024;
constexpr std::size_t most_operation = 32;         // bytes of its name
constexpr std::chrono::seconds longest_update{5};  // of the member list, before a gather ends for a member that is gone

// Whether another worker has the name of one that has left or was lost. Others may know it, and gather with it, before
// this worker's member list has it, and before its observers are told that it joined, or even that the other one ended.
// Blocks while the list is brought up to date.
bool is_back(const group_view& group, const std::string& name) {
  if (!group.dynamic()) return false;  // the member list of a static group never changes
  (void)group.update(deadline::after(longest_update));
  const auto there = group.workers();
  return std::any_of(there.begin(), there.end(), [&](const worker_info& each) { return each.name() == name; });
}

// As the member calls it, for texts.
std::string operation_of(const gather_arrival& arrival) {
  if (arrival.operation.empty()) return arrival.type == 0 ? "barrier" : "all_gather";
  return printable(std::string_view(arrival.operation).substr(0, most_operation));
}

}  // namespace

std::string list_names(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most_names));
  std::string text = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (names.size() > most_names) text += fmt::format(" and {} more", names.size() - most_names);
  return text;
}

// Other threads send the answers. An arrival is destroyed once its answer has been sent; destroying the last one
// answers the collecting worker itself, which may shut down as soon as it is answered.
struct gather_rounds::last_answer {
  std::optional<promise<gather_answer>> answer;
  gather_answer value;
  std::unique_ptr<value_order> order;  // of the value
  last_answer() = default;
  ~last_answer() {
    if (!answer) return;
    const callback_streams streams(order.get());
    answer->try_set_value(std::move(value));
  }
  last_answer(const last_answer&) = delete;
  last_answer& operator=(const last_answer&) = delete;
};

void gather_rounds::departure::operator()() const noexcept {
  const auto own = where;  // *this is destroyed with the round
  if (const auto rounds = own->rounds.lock()) rounds->give_up(*own, false);
}

namespace {

// Lets go of the rounds when the worker closes, so that handlers that wait in one end.
class rounds_of_worker final : public worker_attachment {
 public:
  [[nodiscard]] std::shared_ptr<gather_rounds> rounds() const {
    const std::lock_guard lock(mutex_);
    if (!rounds_) throw_error(errc::not_initialized, "the worker has been shut down; call init_rpc again");
    return rounds_;
  }
  /// Null: the worker has been shut down.
  [[nodiscard]] std::shared_ptr<gather_rounds> rounds_if_open() const noexcept {
    const std::lock_guard lock(mutex_);
    return rounds_;
  }
  void close() noexcept override {
    std::shared_ptr<gather_rounds> dropped;  // destroyed without the mutex
    const std::lock_guard lock(mutex_);
    dropped.swap(rounds_);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<gather_rounds> rounds_ = std::make_shared<gather_rounds>();
};

constexpr attached_key<rounds_of_worker> rounds_key("ferry.group");

void list_waiting_rounds(const worker_core& worker, clock::time_point now, collectives_of_worker& to) {
  const auto own = worker.attached().find(rounds_key);
  if (const auto rounds = own ? own->rounds_if_open() : nullptr) rounds->describe_waiting(now, to.pending);
}
const bool waiting_rounds_listed = [] {
  add_collective_source(&list_waiting_rounds);
  return true;
}();

}  // namespace

std::shared_ptr<gather_rounds> gather_rounds::of(worker_core& worker) {
  auto own = attached_to(worker, rounds_key)->rounds();
  std::call_once(own->observes_, [&] {
    worker.observe_members(
        [weak = own->weak_from_this(), weak_worker = worker.weak_from_this()](const member_event& event) {
          const auto rounds = weak.lock();
          const auto whose = weak_worker.lock();
          if (!rounds || !whose) return;
          const bool ends = event.what == member_event::kind::left || event.what == member_event::kind::lost;
          if (ends && is_back(whose->agent_unchecked().members(), event.who.name())) return;
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
  const auto found = sets_.try_emplace(set).first;
  set_state& state = found->second;
  --state.under_way;
  state.counts = false;
  state.next = 0;
  forget_if_idle(found);
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

gather_rounds::round_state gather_rounds::make_round(const std::string& collecting, std::uint64_t number) {
  round_state made;
  made.collecting = collecting;
  made.began = clock::now();
  std::set<std::uint64_t> one{number};
  made.number = one.extract(one.begin());
  made.result = std::make_shared<gather_result>();
  made.result->round = number;
  made.last = std::make_shared<last_answer>();
  return made;
}

gather_rounds::round_state gather_rounds::end_round(sets::iterator set, rounds::iterator round) noexcept {
  set_state& state = set->second;
  round_state ended = std::move(round->second);
  state.waiting.erase(round);
  state.ended.insert(std::move(ended.number));
  if (state.ended.size() > most_ended) state.open = *state.ended.begin();
  while (!state.ended.empty() && *state.ended.begin() == state.open) {
    state.ended.erase(state.ended.begin());
    ++state.open;
  }
  forget_if_idle(set);
  return ended;
}

bool gather_rounds::withdraw(const place& where, std::map<std::string, waiting_member>::node_type& out) noexcept {
  const auto set = sets_.find(where.set);
  if (set == sets_.end()) return false;
  const auto round = set->second.waiting.find(where.round);
  if (round == set->second.waiting.end()) return false;
  out = round->second.members.extract(where.member);
  if (!out) return false;
  if (round->second.members.empty()) set->second.waiting.erase(round);
  forget_if_idle(set);
  return true;
}

void gather_rounds::forget_if_idle(sets::iterator set) noexcept {
  const set_state& state = set->second;
  // Keep a set in which this worker itself gathers, with its count: the program bounds their number. Any peer can make
  // up other sets.
  if (sets_.size() > many_sets && state.waiting.empty() && state.under_way == 0 && !state.counts) sets_.erase(set);
}

future<gather_answer> gather_rounds::arrive(const gather_arrival& arrival, const std::string& from, ferry::agent& group,
                                            const std::stop_token& gone) {
  const auto refuse = [](gather_result result) {
    return make_ready_future(gather_answer{std::make_shared<const gather_result>(std::move(result))});
  };
  const std::string& collecting = arrival.members.front();
  const deadline until =
      arrival.left_us == 0 ? deadline() : deadline::after(std::chrono::microseconds(arrival.left_us));
  end_late_rounds(arrival);
  forget_returned(arrival.members, group);
  std::shared_ptr<time_limit> limit;  // these two are destroyed without the mutex held
  std::unique_ptr<std::stop_callback<departure>> watch;
  round_state ended;
  place where{weak_from_this(), arrival.members, 0, from};
  // What may fail comes first: a member is in its round with all that it brings, or not at all.
  std::map<std::string, waiting_member> own;
  waiting_member& member = own[from];
  member.value = arrival.value;
  member.order = value_order::of(arrival.value.tensors);
  member.type = arrival.type;
  member.operation = operation_of(arrival);
  member.limit_us = arrival.limit_us;
  member.until = until;
  member.answered = &arrival.answered;
  future<gather_answer> answer_to_come = member.answer.get_future();
  {
    std::lock_guard lock(mutex_);
    // If this member joined now, its departure would also end the round for members that have arrived since, including
    // its successor.
    if (gone.stop_requested()) {
      gather_result result;
      result.error = static_cast<std::uint32_t>(errc::call_cancelled);
      result.text = fmt::format("{} was lost, or cancelled its call, before the call was handled", from);
      return refuse(std::move(result));
    }
    const auto place_of_set = sets_.try_emplace(arrival.members).first;
    set_state& set = place_of_set->second;
    // A member that counts rounds of another incarnation of this worker is not in `known`.
    where.round = set.known.insert(from).second || !arrival.counts ? next_for(set, from) : arrival.round;
    if (is_over(set, where.round)) {
      gather_result result;
      result.error = static_cast<std::uint32_t>(errc::group_mismatch);
      result.text =
          fmt::format("the {} that {} was to join has ended without it; its next call joins the current round",
                      operation_of(arrival), from);
      result.round = next_for(set, from) - 1;
      return refuse(std::move(result));
    }
    auto found = set.waiting.find(where.round);
    if (found == set.waiting.end()) found = set.waiting.emplace(where.round, make_round(collecting, where.round)).first;
    round_state& round = found->second;
    if (round.members.count(from) != 0) {
      throw_error(errc::invalid_argument, fmt::format("{} takes part in round {} of the set {} twice", from,
                                                      where.round, list_names(arrival.members)));
    }
    std::string why;
    const bool complete = round.members.size() + 1 == arrival.members.size();
    try {
      if (complete && arrival.type != 0) round.result->values.reserve(arrival.members.size());
      if (!complete) why = gone_of(arrival.members, round, from);
    } catch (...) {
      if (round.members.empty()) set.waiting.erase(found);
      throw;
    }
    round.members.insert(own.extract(from));
    if (complete) {
      const auto other = std::find_if(round.members.begin(), round.members.end(),
                                      [&](const auto& each) { return each.second.type != arrival.type; });
      if (other != round.members.end()) {
        set_error(*round.result, errc::group_mismatch, [&] {
          return fmt::format("{} and {} gather different types, or one of them called barrier()", from, other->first);
        });
      } else if (arrival.type != 0) {
        for (auto& [name, each] : round.members) round.result->values.push_back(std::move(each.value));
      }
      ended = end_round(place_of_set, found);
    } else if (!why.empty()) {
      set_error(*round.result, errc::peer_lost, [&] { return std::move(why); });
      ended = end_round(place_of_set, found);
    }
  }
  if (!ended.members.empty()) {
    answer(std::move(ended));
    return answer_to_come;
  }
  try {
    if (!until.is_never()) {
      limit = std::make_shared<time_limit>(group.reactor(), until, [where] {
        if (const auto own = where.rounds.lock()) own->give_up(where, true);
      });
    }
    watch = std::make_unique<std::stop_callback<departure>>(gone, departure{std::make_shared<const place>(where)});
  } catch (...) {
    std::map<std::string, waiting_member>::node_type out;
    const std::lock_guard lock(mutex_);
    if (withdraw(where, out)) throw;
    return answer_to_come;  // the round has ended, with this member
  }
  {
    std::lock_guard lock(mutex_);
    const auto set = sets_.find(where.set);
    if (set == sets_.end()) return answer_to_come;
    const auto round = set->second.waiting.find(where.round);
    if (round == set->second.waiting.end()) return answer_to_come;
    waiting_member& here = round->second.members.at(from);
    here.limit = std::move(limit);
    here.watch = std::move(watch);
  }
  return answer_to_come;
}

void gather_rounds::describe_waiting(clock::time_point now, std::vector<pending_collective_info>& to) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [set, state] : sets_) {
    for (const auto& [number, round] : state.waiting) {
      if (round.members.empty()) continue;
      pending_collective_info& one = to.emplace_back();
      one.operation = round.members.begin()->second.operation;
      one.number = number;
      one.members = set;
      one.age = std::max(now - round.began, clock::duration{});
      one.until = {};
      for (const auto& [name, each] : round.members) one.until = std::min(one.until, each.until);
      std::copy_if(set.begin(), set.end(), std::back_inserter(one.missing),
                   [&](const std::string& name) { return !round.members.contains(name); });
    }
  }
}

std::string gather_rounds::gone_of(const member_set& set, const round_state& round, const std::string& arriving) const {
  if (gone_.empty()) return {};
  for (const std::string& name : set) {
    if (name == arriving || round.members.count(name) != 0) continue;
    if (const auto gone = gone_.find(name); gone != gone_.end())
      return fmt::format("{}, which had not called it, {}", name, gone->second.what);
  }
  return {};
}

void gather_rounds::forget_returned(const member_set& set, ferry::agent& group) {
  std::vector<std::pair<std::string, std::uint64_t>> recorded;
  {
    const std::lock_guard lock(mutex_);
    if (gone_.empty()) return;
    for (const std::string& name : set) {
      if (const auto gone = gone_.find(name); gone != gone_.end()) recorded.emplace_back(name, gone->second.number);
    }
  }
  for (const auto& [name, number] : recorded) {
    if (!is_back(group.members(), name)) continue;
    const std::lock_guard lock(mutex_);
    // The one that came back may have gone, too.
    if (const auto gone = gone_.find(name); gone != gone_.end() && gone->second.number == number)
      forget_gone(gone->second.id);
  }
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
  {
    std::lock_guard lock(mutex_);
    forget_gone(who.id());
    if (const auto found = gone_.find(name); found != gone_.end()) forget_gone(found->second.id);
    try {
      gone_names_.insert_or_assign(who.id(), name);
      gone_.insert_or_assign(name, gone_worker{who.id(), what, ++gone_so_far_});
    } catch (const std::bad_alloc&) {
      gone_names_.erase(who.id());
      log(log_level::error,
          "no memory to keep in mind that a worker is gone: gathers that wait for it end by their limits");
    }
  }
  // One at a time, which needs no memory for a list.
  for (bool found = true; found;) {
    round_state ended;
    {
      std::lock_guard lock(mutex_);
      found = false;
      for (auto set = sets_.begin(); set != sets_.end() && !found; ++set) {
        if (!std::binary_search(set->first.begin(), set->first.end(), name)) continue;
        const auto round = std::find_if(set->second.waiting.begin(), set->second.waiting.end(),
                                        [&](const auto& each) { return each.second.members.count(name) == 0; });
        if (round == set->second.waiting.end()) continue;
        found = true;
        set_error(*round->second.result, errc::peer_lost,
                  [&] { return fmt::format("{}, which had not called it, {}", name, what); });
        ended = end_round(set, round);
        break;
      }
    }
    if (found) answer(std::move(ended));
  }
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
  {
    std::lock_guard lock(mutex_);
    const auto set = sets_.find(where.set);
    if (set == sets_.end()) return;
    const auto round = set->second.waiting.find(where.round);
    // The set may have been forgotten since: its rounds are then numbered from zero again.
    if (round == set->second.waiting.end() || round->second.members.count(where.member) == 0) return;
    ended = end_round(set, round);
  }
  set_error(*ended.result, timed_out ? errc::rpc_timeout : errc::peer_lost, [&] {
    std::vector<std::string> missing;
    for (const std::string& name : where.set) {
      if (ended.members.count(name) == 0) missing.push_back(name);
    }
    const waiting_member& first = ended.members.at(where.member);
    return timed_out
               ? fmt::format("timed out in {} after {:.2f} seconds (the limit of {}); missing: {}", first.operation,
                             static_cast<double>(first.limit_us) / 1e6, where.member, list_names(missing))
               : fmt::format("{} was lost, or cancelled its call, while it waited for {}", where.member,
                             list_names(missing));
  });
  answer(std::move(ended));
}

template <class Describe>
void gather_rounds::set_error(gather_result& result, errc error, const Describe& describe) noexcept {
  result.error = static_cast<std::uint32_t>(error);
  try {
    result.text = describe();
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the error says what it is
  }
}

// What devices still write into the members' tensors, each in the order of its own call, comes before what follows here.
void gather_rounds::order_values(round_state& ended) noexcept {
  if (ended.result->values.empty()) return;
  const auto failure = caught([&] {
    std::vector<tensor> all;
    for (const auto& [name, member] : ended.members) {
      if (member.order) member.order->let_current_streams_wait();
    }
    for (const serialized& each : ended.result->values) all.insert(all.end(), each.tensors.begin(), each.tensors.end());
    ended.last->order = value_order::of(all);
  });
  if (!failure) return;
  ended.result->values.clear();
  set_error(*ended.result, errc::resource_exhausted,
            [&] { return "the order of tensors on devices could not be kept: " + describe_exception(failure); });
}

void gather_rounds::answer(round_state ended) noexcept {
  order_values(ended);
  const gather_answer shared{std::move(ended.result)};
  std::shared_ptr<last_answer> last;
  if (const auto own = ended.members.find(ended.collecting); own != ended.members.end()) {
    last = std::move(ended.last);
    last->answer.emplace(std::move(own->second.answer));
    last->value = shared;
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

#include "group_index.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rpc/diagnostics/collective_methods.hpp"

namespace ferry_top {
namespace {

using nanoseconds = std::chrono::nanoseconds;

constexpr std::size_t most_names = 4;  // in a text

using name_set = std::set<std::string_view>;
name_set set_of(const std::vector<std::string>& names) { return {names.begin(), names.end()}; }

}  // namespace

group_index::group_index(const observation& of) {
  for (const observed& each : of.workers) {
    if (!each.snapshot) continue;
    const observed*& place = by_name_[each.who.who.name()];
    if (!place || place->snapshot->time < each.snapshot->time) place = &each;
  }
  for (const auto& [name, each] : by_name_) {
    for (const ferry::served_call_info& call : each->snapshot->served_calls)
      served_.emplace(served_key(name, call.caller.name(), call.id), &call);
    for (const ferry::group_progress_info& group : each->snapshot->groups) group_ids_[group.name].insert(group.id);
    for (const ferry::pending_collective_info& one : each->snapshot->pending_collectives) add_collective(*each, one);
  }
  for (waiting_collective& each : collectives_) {
    find_missing(each);
    each.text = describe(*each.what);
  }
}

void group_index::add_collective(const observed& member, const ferry::pending_collective_info& what) {
  const std::string& name = member.who.who.name();
  const std::vector<std::string>* members = &what.members;
  if (what.group_id == 0) {
    gathers_[name].push_back(collectives_.size());
    waiting_collective& made = collectives_.emplace_back();
    made.what = &what;
    made.members = members;
    made.missing = what.missing;
    const name_set missing = set_of(what.missing);
    std::copy_if(members->begin(), members->end(), std::back_inserter(made.waiting),
                 [&](const std::string& each) { return !missing.contains(each); });
    return;
  }
  for (const ferry::group_progress_info& group : member.snapshot->groups) {
    if (members->empty() && group.id == what.group_id) members = &group.members;
  }
  const auto [place, fresh] =
      places_.try_emplace(collective_key(what.group_id, what.channel, what.number), collectives_.size());
  if (fresh) collectives_.emplace_back();
  waiting_collective& one = collectives_[place->second];
  const bool longest = !one.what || one.what->age < what.age;
  if (longest) {
    one.what = &what;
    one.members = members;
  }
  one.waiting.insert(longest ? one.waiting.begin() : one.waiting.end(), name);
}

// A member that does not have it under way has called it and has done its part, or has not called it yet: it tells how far it is. Of
// messages between two it does not; one that another waits for has not been called.
void group_index::find_missing(waiting_collective& of) const {
  if (of.what->group_id == 0) return;
  const name_set waiting = set_of(of.waiting);
  for (const std::string& each : *of.members) {
    if (waiting.contains(each)) continue;
    const observed* const member = find(each);
    if (!member) {
      of.unknown.push_back(each);
      continue;
    }
    const auto& groups = member->snapshot->groups;
    const auto own = std::find_if(groups.begin(), groups.end(),
                                  [&](const ferry::group_progress_info& one) { return one.id == of.what->group_id; });
    if (own == groups.end()) {
      of.without.push_back(each);
    } else if (of.what->channel >= 0 || own->begun <= of.what->number) {
      of.missing.push_back(each);
    }
  }
}

const observed* group_index::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

const ferry::served_call_info* group_index::served(const std::string& caller,
                                                   const ferry::pending_call_info& call) const {
  const auto found = served_.find(served_key(call.peer.name(), caller, call.id));
  return found == served_.end() ? nullptr : found->second;
}

const waiting_collective* group_index::collective(const ferry::pending_collective_info& of) const {
  const auto found = places_.find(collective_key(of.group_id, of.channel, of.number));
  return found == places_.end() ? nullptr : &collectives_[found->second];
}

// The oldest that the caller takes part in: a thread waits for one at a time.
const waiting_collective* group_index::gather(const std::string& caller, const ferry::pending_call_info& call) const {
  if (call.method != ferry::detail::gather_method) return nullptr;
  const auto at = gathers_.find(call.peer.name());
  if (at == gathers_.end()) return nullptr;
  const waiting_collective* oldest = nullptr;
  for (const std::size_t each : at->second) {
    const waiting_collective& one = collectives_[each];
    if (oldest && oldest->what->age >= one.what->age) continue;
    if (std::find(one.waiting.begin(), one.waiting.end(), caller) != one.waiting.end()) oldest = &one;
  }
  return oldest;
}

call_list made_within(const observed& worker, nanoseconds age) {
  call_list result;
  for (const ferry::pending_call_info& each : worker.snapshot->pending_calls) {
    if (each.age <= age && !ferry::detail::is_group_message(each.method)) result.push_back(&each);
  }
  return result;
}
call_list all_calls_of(const observed& worker) { return made_within(worker, nanoseconds::max()); }

const ferry::pending_collective_info* begun_within(const observed& worker, nanoseconds age) {
  const auto& all = worker.snapshot->pending_collectives;  // the oldest first
  const auto found = std::find_if(all.begin(), all.end(), [&](const ferry::pending_collective_info& each) {
    return each.group_id != 0 && each.age <= age;
  });
  return found == all.end() ? nullptr : &*found;
}

reason reason_of(const ferry::served_call_info& served) {
  switch (served.phase) {
    case ferry::served_phase::queued:
    case ferry::served_phase::held: return reason::turn;
    case ferry::served_phase::running: return reason::nothing;
    case ferry::served_phase::waiting:
    case ferry::served_phase::later: return reason::nested;
  }
  return reason::nothing;
}

std::string seconds_text(nanoseconds value) {
  return fmt::format("{:.3g} s", std::chrono::duration<double>(value).count());
}

std::string names_text(const std::vector<std::string>& names) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), most_names));
  std::string text = fmt::format("{}", fmt::join(names.begin(), end, ", "));
  if (names.size() > most_names) text += fmt::format(" and {} more", names.size() - most_names);
  return text;
}

std::string group_index::describe(const ferry::pending_collective_info& what) const {
  if (what.group_id == 0) return fmt::format("{} of {}", what.operation, names_text(what.members));
  std::string text = fmt::format("{}, {} {} of group '{}'", what.operation, what.channel < 0 ? "collective" : "message",
                                 what.number, what.group);
  const auto same = group_ids_.find(what.group);
  if (same != group_ids_.end() && same->second.size() > 1) text += fmt::format(" ({:08x})", what.group_id >> 32U);
  return text;
}

}  // namespace ferry_top

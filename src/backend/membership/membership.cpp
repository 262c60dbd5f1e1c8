#include "membership.hpp"

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"

namespace ferry::inline v0::detail {
namespace {

[[noreturn]] void throw_bad_worker_record(std::string_view what) {
  throw_error(errc::malformed,
              fmt::format("the store holds a value that is not a valid {} of a dynamic group; is another "
                          "program using these keys?",
                          what));
}

// Removes the text up to the next separator from the front.
std::string_view next_part(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const auto part = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return part;
}

template <class Number>
Number parse(std::string_view text, int base, std::string_view what) {
  const auto value = parse_number<Number>(text, base);
  if (!value) throw_bad_worker_record(what);
  return *value;
}

worker_id parse_id(std::string_view text, std::string_view what) {
  const worker_id id{parse<std::int32_t>(text, 10, what)};
  if (id.value < 0 || id.value > worker_id::max) throw_bad_worker_record(what);
  return id;
}

}  // namespace

std::string member_entry::encode() const {
  switch (what) {
    case kind::join: return fmt::format("join {}\n{}", record.who.id().value, record.encode());
    case kind::leave: return fmt::format("leave {:016x}\n", whom.value);
    case kind::gone: return fmt::format("gone {:016x}\n", whom.value);
    case kind::suspect: return fmt::format("suspect {:016x} {:016x}\n", witness.value, whom.value);
    case kind::alive: return fmt::format("alive {:016x}\n", whom.value);
    case kind::lost: break;
  }
  return fmt::format("lost {:016x} {:016x} {}\n{}", witness.value, whom.value, unanswered, reason);
}

member_entry member_entry::decode(std::string_view text) {
  constexpr std::string_view what = "entry";
  std::string_view rest = text;
  std::string_view head = next_part(rest, '\n');
  const auto verb = next_part(head, ' ');
  member_entry result;
  if (verb == "join") {
    result.what = kind::join;
    result.record = worker_record::decode(rest, parse_id(head, what).value);
  } else if (verb == "leave" || verb == "gone" || verb == "alive") {
    result.what = verb == "leave" ? kind::leave : verb == "gone" ? kind::gone : kind::alive;
    result.whom.value = parse<std::uint64_t>(head, 16, what);
  } else if (verb == "suspect") {
    result.what = kind::suspect;
    result.witness.value = parse<std::uint64_t>(next_part(head, ' '), 16, what);
    result.whom.value = parse<std::uint64_t>(head, 16, what);
  } else if (verb == "lost") {
    result.what = kind::lost;
    result.witness.value = parse<std::uint64_t>(next_part(head, ' '), 16, what);
    result.whom.value = parse<std::uint64_t>(next_part(head, ' '), 16, what);
    result.unanswered = parse<std::uint64_t>(head, 10, what);
    result.reason = rest;
  } else {
    throw_bad_worker_record(what);
  }
  return result;
}

membership_change membership::apply(std::uint64_t index, member_entry entry) {
  membership_change change = take(index, std::move(entry));
  index_ = index;  // last: without memory nothing has changed, and the entry is read again
  return change;
}

membership_change membership::take(std::uint64_t index, member_entry&& entry) {
  using what = membership_change::kind;
  if (entry.what == member_entry::kind::join) {
    if (!device_conflict(entry.record).empty()) return {};
    const group_member newcomer{std::make_shared<const worker_record>(std::move(entry.record)), index};
    if (!insert(newcomer)) return {};
    return {what::joined, newcomer, {}};
  }
  const auto known = by_incarnation_.find(entry.whom.value);
  if (known == by_incarnation_.end()) return {};
  group_member& whom = members_.find(known->second)->second;
  switch (entry.what) {
    case member_entry::kind::join: break;
    case member_entry::kind::leave:
      if (whom.leaving) return {};
      whom.leaving = true;
      whom.suspected = 0;
      return {what::left, whom, {}};
    case member_entry::kind::suspect:
      // A pending query must be answered once, whatever member repeats it.
      if (whom.suspected != 0 || !find(entry.witness)) return {};
      whom.suspected = index;
      return {what::suspected, whom, {}};
    case member_entry::kind::alive:
      if (whom.suspected == 0) return {};
      whom.suspected = 0;
      return {what::answered, whom, {}};
    case member_entry::kind::gone: return remove(whom, what::gone, {});
    case member_entry::kind::lost:
      // Reports of dead workers do not count: of two that declare each other dead, the first entry wins.
      if (entry.witness.value != 0 && !find(entry.witness)) return {};
      if (entry.unanswered != 0 && entry.unanswered != whom.suspected) return {};  // it has answered
      return remove(whom, whom.leaving ? what::gone : what::lost, std::move(entry.reason));
  }
  return {};
}

membership_change membership::remove(const group_member& whom, membership_change::kind what, std::string reason) {
  membership_change change{what, whom, std::move(reason)};
  forget(*change.member.record);
  return change;
}

bool membership::insert(group_member who) {
  const shared_record kept = who.record;
  const int id = kept->who.id().value;
  // Most newcomers have the highest id.
  const auto place = members_.empty() || members_.rbegin()->first < id ? members_.end() : members_.lower_bound(id);
  if (place != members_.end() && place->first == id) return false;
  if (by_name_.contains(kept->who.name()) || by_incarnation_.contains(kept->incarnation.value)) return false;
  try {
    members_.emplace_hint(place, id, std::move(who));
    by_name_.emplace(kept->who.name(), id);
    by_incarnation_.emplace(kept->incarnation.value, id);
    if (kept->devices && !kept->devices->maps.empty()) with_maps_.insert(id);
  } catch (...) {
    forget(*kept);
    throw;
  }
  return true;
}

// By everything that its record says of it.
void membership::forget(const worker_record& whom) noexcept {
  with_maps_.erase(whom.who.id().value);
  by_incarnation_.erase(whom.incarnation.value);
  by_name_.erase(whom.who.name());
  members_.erase(whom.who.id().value);
}

const group_member* membership::find(std::string_view name) const noexcept {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : find(worker_id{found->second});
}

const group_member* membership::find(worker_id id) const noexcept {
  const auto found = members_.find(id.value);
  return found == members_.end() ? nullptr : &found->second;
}

const group_member* membership::find(incarnation_id incarnation) const noexcept {
  const auto found = by_incarnation_.find(incarnation.value);
  return found == by_incarnation_.end() ? nullptr : find(worker_id{found->second});
}

worker_id membership::lowest_free_id() const noexcept {
  int id = 0;
  for (const auto& [taken, member] : members_) {
    if (taken != id) break;
    ++id;
  }
  return worker_id{id};
}

std::string membership::device_conflict(const worker_record& newcomer) const {
  if (!newcomer.devices) return {};
  // Rules concern those whose maps may name the newcomer, and those that its own maps name.
  std::set<int> concerned = with_maps_;
  for (const auto& [name, map] : newcomer.devices->maps) {
    if (const auto target = by_name_.find(name); target != by_name_.end()) concerned.insert(target->second);
  }
  std::vector<worker_devices> others;
  std::size_t place = 0;
  for (const int id : concerned) {
    const group_member& member = members_.at(id);
    if (member.leaving) continue;
    if (id < newcomer.who.id().value) ++place;
    others.push_back(member.record->for_checks());
  }
  return broken_device_rule(newcomer.for_checks(), place, others);
}

std::string membership::encode() const {
  std::string result = fmt::format("{} {}\n", index_, members_.size());
  for (const auto& [id, member] : members_) {
    const std::string text = member.record->encode();
    result += fmt::format("{} {} {} {} {}\n{}", id, member.joined, member.leaving ? 1 : 0, member.suspected,
                          text.size(), text);
  }
  return result;
}

membership membership::decode(std::string_view text) {
  constexpr std::string_view what = "list of the members";
  membership result;
  std::string_view rest = text;
  std::string_view head = next_part(rest, '\n');
  result.index_ = parse<std::uint64_t>(next_part(head, ' '), 10, what);
  for (auto left = parse<std::size_t>(head, 10, what); left != 0; --left) {
    std::string_view line = next_part(rest, '\n');
    const worker_id id = parse_id(next_part(line, ' '), what);
    group_member member;
    member.joined = parse<std::uint64_t>(next_part(line, ' '), 10, what);
    member.leaving = parse<int>(next_part(line, ' '), 10, what) != 0;
    member.suspected = parse<std::uint64_t>(next_part(line, ' '), 10, what);
    const auto size = parse<std::size_t>(line, 10, what);
    if (size > rest.size()) throw_bad_worker_record(what);
    member.record = std::make_shared<const worker_record>(worker_record::decode(rest.substr(0, size), id.value));
    rest.remove_prefix(size);
    if (!result.insert(std::move(member))) throw_bad_worker_record(what);
  }
  return result;
}

}  // namespace ferry::inline v0::detail

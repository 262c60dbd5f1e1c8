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

member_entry member_entry::decode(const std::string& text) {
  constexpr std::string_view what = "entry";
  std::string_view rest = text;
  std::string_view head = next_part(rest, '\n');
  const auto verb = next_part(head, ' ');
  member_entry result;
  if (verb == "join") {
    result.what = kind::join;
    result.record = worker_record::decode(std::string(rest), parse_id(head, what).value);
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

membership_change membership::apply(std::uint64_t index, const member_entry& entry) {
  membership_change change = take(index, entry);
  index_ = index;  // last: without memory nothing has changed, and the entry is read again
  return change;
}

membership_change membership::take(std::uint64_t index, const member_entry& entry) {
  if (entry.what == member_entry::kind::join) {
    const worker_info& who = entry.record.who;
    if (find(who.name()) || find(who.id()) || find(entry.record.incarnation)) return {};
    if (!device_conflict(entry.record).empty()) return {};
    worker_record record = entry.record;
    record.joined = index;
    membership_change change{membership_change::kind::joined, record, {}};
    insert(std::move(record));
    return change;
  }
  const worker_record* known = find(entry.whom);
  if (!known) return {};
  worker_record& whom = members_.at(known->who.id().value);
  using what = membership_change::kind;
  switch (entry.what) {
    case member_entry::kind::join: break;
    case member_entry::kind::leave: {
      if (whom.leaving) return {};
      membership_change change{what::left, whom, {}};
      change.record.leaving = whom.leaving = true;
      change.record.suspected = whom.suspected = 0;
      return change;
    }
    case member_entry::kind::suspect:
      // A pending query must be answered once, whatever member repeats it.
      if (whom.suspected != 0 || !find(entry.witness)) return {};
      return suspect(whom, index, what::suspected);
    case member_entry::kind::alive:
      if (whom.suspected == 0) return {};
      return suspect(whom, 0, what::answered);
    case member_entry::kind::gone: return remove(whom, what::gone, {});
    case member_entry::kind::lost:
      // Reports of dead workers do not count: of two that declare each other dead, the first entry wins.
      if (entry.witness.value != 0 && !find(entry.witness)) return {};
      if (entry.unanswered != 0 && entry.unanswered != whom.suspected) return {};  // it has answered
      return remove(whom, whom.leaving ? what::gone : what::lost, entry.reason);
  }
  return {};
}

membership_change membership::suspect(worker_record& whom, std::uint64_t index, membership_change::kind what) {
  membership_change change{what, whom, {}};
  change.record.suspected = whom.suspected = index;
  return change;
}

membership_change membership::remove(const worker_record& whom, membership_change::kind what, std::string reason) {
  membership_change change{what, whom, std::move(reason)};
  ids_by_name_.erase(change.record.who.name());
  ids_by_incarnation_.erase(change.record.incarnation.value);
  with_maps_.erase(change.record.who.id().value);
  members_.erase(change.record.who.id().value);
  return change;
}

void membership::insert(worker_record who) {
  const int id = who.who.id().value;
  std::map<std::string, int, std::less<>> name;
  name.emplace(who.who.name(), id);
  std::map<std::uint64_t, int> incarnation{{who.incarnation.value, id}};
  std::set<int> with_maps;
  if (who.devices && !who.devices->maps.empty()) with_maps.insert(id);
  std::map<int, worker_record> member;
  member.emplace(id, std::move(who));
  // Nodes change their places without memory.
  ids_by_name_.merge(name);
  ids_by_incarnation_.merge(incarnation);
  with_maps_.merge(with_maps);
  members_.merge(member);
}

const worker_record* membership::find(std::string_view name) const noexcept {
  const auto found = ids_by_name_.find(name);
  return found == ids_by_name_.end() ? nullptr : find(worker_id{found->second});
}

const worker_record* membership::find(worker_id id) const noexcept {
  const auto found = members_.find(id.value);
  return found == members_.end() ? nullptr : &found->second;
}

const worker_record* membership::find(incarnation_id incarnation) const noexcept {
  const auto found = ids_by_incarnation_.find(incarnation.value);
  return found == ids_by_incarnation_.end() ? nullptr : find(worker_id{found->second});
}

worker_id membership::lowest_free_id() const noexcept {
  int id = 0;
  for (const auto& [taken, record] : members_) {
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
    if (const worker_record* const target = find(name)) concerned.insert(target->who.id().value);
  }
  std::vector<worker_devices> others;
  std::size_t place = 0;
  for (const int id : concerned) {
    const worker_record& record = members_.at(id);
    if (record.leaving) continue;
    if (id < newcomer.who.id().value) ++place;
    others.push_back(record.for_checks());
  }
  return broken_device_rule(newcomer.for_checks(), place, others);
}

std::string membership::encode() const {
  std::string result = fmt::format("{} {}\n", index_, members_.size());
  for (const auto& [id, record] : members_) {
    const std::string text = record.encode();
    result += fmt::format("{} {} {} {} {}\n{}", id, record.joined, record.leaving ? 1 : 0, record.suspected,
                          text.size(), text);
  }
  return result;
}

membership membership::decode(const std::string& text) {
  constexpr std::string_view what = "list of the members";
  membership result;
  std::string_view rest = text;
  std::string_view head = next_part(rest, '\n');
  result.index_ = parse<std::uint64_t>(next_part(head, ' '), 10, what);
  for (auto left = parse<std::size_t>(head, 10, what); left != 0; --left) {
    std::string_view line = next_part(rest, '\n');
    const worker_id id = parse_id(next_part(line, ' '), what);
    const auto joined = parse<std::uint64_t>(next_part(line, ' '), 10, what);
    const bool leaving = parse<int>(next_part(line, ' '), 10, what) != 0;
    const auto suspected = parse<std::uint64_t>(next_part(line, ' '), 10, what);
    const auto size = parse<std::size_t>(line, 10, what);
    if (size > rest.size()) throw_bad_worker_record(what);
    auto record = worker_record::decode(std::string(rest.substr(0, size)), id.value);
    record.joined = joined;
    record.leaving = leaving;
    record.suspected = suspected;
    rest.remove_prefix(size);
    if (result.find(record.who.name()) || result.find(id) || result.find(record.incarnation))
      throw_bad_worker_record(what);
    result.insert(std::move(record));
  }
  return result;
}

}  // namespace ferry::inline v0::detail

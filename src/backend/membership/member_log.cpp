#include "member_log.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../base/parse_number.hpp"
#include "../../base/peer_log.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::size_t entries_together = 64;  // read before they are applied

std::string entry_key(std::uint64_t index) { return fmt::format("log/{}", index); }

std::uint64_t to_number(std::string_view text) noexcept { return parse_number<std::uint64_t>(text).value_or(0); }

}  // namespace

std::shared_ptr<bounded_store> member_log::where() const {
  const std::lock_guard lock(store_mutex_);
  if (!store_) throw_error(errc::store_failed, "the worker has left its group, and the group's store");
  return store_;
}

void member_log::release() noexcept {
  std::shared_ptr<bounded_store> released;
  const std::lock_guard lock(store_mutex_);
  released.swap(store_);
}

// Not a std::timed_mutex: the thread sanitizer of clang 16 does not know how that locks.
member_log::turn::turn(const member_log& log, deadline until) : log_(log) {
  const auto since = clock::now();
  std::unique_lock lock(log_.turn_mutex_);
  const auto free = [&] { return !log_.turn_taken_; };
  if (until.is_never()) {
    log_.turn_free_.wait(lock, free);
  } else if (!log_.turn_free_.wait_until(lock, until.at(), free)) {
    lock.unlock();
    throw_error(errc::store_timeout, fmt::format("waited {} for earlier requests to the {}", seconds_since(since),
                                                 log_.where()->describe()));
  }
  log_.turn_taken_ = true;
}

member_log::turn::~turn() {
  const std::lock_guard lock(log_.turn_mutex_);
  log_.turn_taken_ = false;
  log_.turn_free_.notify_one();
}

std::uint64_t member_log::number_at(std::string_view key, deadline until) const {
  return to_number(where()->try_get(key, until).value_or("0"));
}

void member_log::report() {
  auto next = unreported_.begin();
  try {
    for (; next != unreported_.end(); ++next) observer_(*next);
  } catch (...) {
    unreported_.erase(unreported_.begin(), next);
    throw;
  }
  unreported_.clear();
  seen_.store(members_.index(), std::memory_order_release);
}

membership_change::kind member_log::take(std::uint64_t index, const std::string& text) {
  unreported_.reserve(unreported_.size() + 1);  // once the entry is applied, its change must not be lost
  membership_change change;
  try {
    member_entry entry = member_entry::decode(text);
    const std::lock_guard lock(members_mutex_);
    change = members_.apply(index, std::move(entry));
  } catch (const error& e) {
    log_about("the log of the group", log_level::warning, [&] {
      return fmt::format("entry {} of the group's log in the {} was skipped: {}", index, where()->describe(),
                         e.message());
    });
    const std::lock_guard lock(members_mutex_);
    members_.skip(index);
  }
  const auto what = change.what;
  if (what != membership_change::kind::none) unreported_.push_back(std::move(change));
  report();
  return what;
}

void member_log::load(deadline until) {
  const turn mine(*this, until);
  load_snapshot(until);
  read_new(false, until);  // the snapshot was just loaded
}

// Loads the snapshot that other members have published, and reports what differs from what was known here.
void member_log::load_snapshot(deadline until) {
  report();
  for (std::optional<std::uint64_t> before;;) {
    if (const auto text = where()->try_get("members", until)) {
      membership there = membership::decode(*text);
      if (there.index() > members_.index()) {
        unreported_ = difference(members_, there);
        {
          const std::lock_guard lock(members_mutex_);
          std::swap(members_, there);
        }
        report();
      }
    }
    // All entries in one round trip.
    std::map<std::uint64_t, std::string> entries;
    for (store_entry& each : where()->list("log/", until)) {
      entries.emplace(to_number(std::string_view(each.key).substr(4)), std::move(each.value));
    }
    // Among removed entries there may be a new one of a writer that has yet to detect the removal (append()).
    if (number_at("trimmed", until) > members_.index()) {
      if (before == members_.index()) {
        throw_error(errc::malformed,
                    fmt::format("the group's log in the {} has a gap after entry {}; were keys removed?",
                                where()->describe(), members_.index()));
      }
      before = members_.index();
      continue;
    }
    for (auto next = entries.find(members_.index() + 1); next != entries.end() && next->first == members_.index() + 1;
         ++next) {
      take(next->first, next->second);
    }
    return;
  }
}

std::vector<membership_change> member_log::difference(const membership& from, const membership& to) {
  using what = membership_change::kind;
  std::vector<membership_change> result;
  for (const auto& [id, before] : from.members()) {
    const group_member* const now = to.find(before.record->incarnation);
    if (!now) {
      result.push_back({what::gone, before, {}});
      continue;
    }
    if (now->leaving && !before.leaving) result.push_back({what::left, *now, {}});
    if (now->suspected != 0 && now->suspected != before.suspected) result.push_back({what::suspected, *now, {}});
  }
  for (const auto& [id, member] : to.members()) {
    if (!from.find(member.record->incarnation)) result.push_back({what::joined, member, {}});
  }
  return result;
}

void member_log::catch_up(deadline until) {
  const turn mine(*this, until);
  read_new(true, until);
}

void member_log::read_new(bool look_for_gap, deadline until) {
  report();
  for (;;) {
    const std::uint64_t next = members_.index() + 1;
    std::vector<std::string> found;
    while (found.size() != entries_together) {
      auto text = where()->try_get(entry_key(next + found.size()), until);
      if (!text) break;
      found.push_back(*std::move(text));
    }
    if (found.empty() && !look_for_gap) return;
    // An entry counts only if those around it had not been removed before: a writer that was suspended for long may
    // have written one in place of a removed entry, and has yet to detect that (append()).
    if (number_at("trimmed", until) >= next) {
      load_snapshot(until);
      continue;
    }
    for (std::size_t i = 0; i != found.size(); ++i) take(next + i, found[i]);
    if (found.size() != entries_together) return;
  }
}

membership_change::kind member_log::append(const member_entry& entry, deadline until) {
  const std::string text = entry.encode();
  const turn mine(*this, until);
  for (;;) {
    read_new(false, until);  // a gap is detected below
    const std::uint64_t next = members_.index() + 1;
    const std::string there = where()->compare_set(entry_key(next), "", text, until);
    // This process may have been suspended for so long that its place in the log has already been trimmed.
    if (number_at("trimmed", until) >= next) {
      if (there == text) where()->erase(entry_key(next), until);
      load_snapshot(until);
      continue;
    }
    const membership_change::kind change = take(next, there);
    if (there != text) continue;
    try {  // the entry stands, even if these writes fail
      where()->set("tail", std::to_string(next), until);
      if (next % snapshot_interval == 0) publish_members(until);
    } catch (const error& e) {
      log(log_level::warning,
          fmt::format("entry {} of the group's log in the {} was written, but the keys that depend on it were not: {}",
                      next, where()->describe(), e.message()));
    }
    return change;
  }
}

void member_log::publish_members(deadline until) {
  const std::string there = where()->try_get("members", until).value_or("");
  if (!there.empty() && membership::decode(there).index() >= members_.index()) return;
  const std::string text = members_.encode();
  if (where()->compare_set("members", there, text, until) != text || members_.index() <= kept_entries) return;
  const std::uint64_t last = members_.index() - kept_entries;
  const std::string before = where()->try_get("trimmed", until).value_or("");
  if (to_number(before) >= last) return;
  if (where()->compare_set("trimmed", before, std::to_string(last), until) != std::to_string(last))
    return;  // another member does it
  for (std::uint64_t index = to_number(before) + 1; index <= last; ++index) where()->erase(entry_key(index), until);
}

bool member_log::wait(deadline until) {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(waiting_mutex_);
    version = tail_version_;
  }
  try {
    const store_change change = where()->wait_change("tail", version, until);
    const std::lock_guard lock(waiting_mutex_);
    tail_version_ = change.version;
    return true;
  } catch (const error& e) {
    // Or it had to connect again, and had no time left for it.
    if (e.kind() == errc::store_timeout || (e.kind() == errc::store_unreachable && until.expired())) return false;
    throw;
  }
}

}  // namespace ferry::inline v0::detail

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

namespace ferry::inline v0::detail {
namespace {

std::string entry_key(std::uint64_t index) { return fmt::format("log/{}", index); }

std::uint64_t to_number(std::string_view text) noexcept { return parse_number<std::uint64_t>(text).value_or(0); }

}  // namespace

std::shared_ptr<store> member_log::where() const {
  const std::lock_guard lock(store_mutex_);
  if (!store_) throw_error(errc::store_failed, "the worker has left its group, and the group's store");
  return store_;
}

void member_log::release() noexcept {
  std::shared_ptr<store> released;
  const std::lock_guard lock(store_mutex_);
  released.swap(store_);
}

membership member_log::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

std::uint64_t member_log::number_at(std::string_view key) { return to_number(where()->try_get(key).value_or("0")); }

void member_log::report(const membership_change& change) {
  if (change.what != membership_change::kind::none) observer_(change);
}

membership_change member_log::take(std::uint64_t index, const std::string& text) {
  membership_change change;
  try {
    change = members_.apply(index, member_entry::decode(text));
  } catch (const error& e) {
    log(log_level::warning,
        fmt::format("entry {} of the group's log in the {} was skipped: {}", index, where()->describe(), e.message()));
    members_.skip(index);
  }
  report(change);
  seen_.store(index, std::memory_order_release);
  return change;
}

void member_log::load() {
  const std::lock_guard lock(mutex_);
  load_snapshot();
  read_new(false);  // the snapshot was just loaded
}

// Loads the snapshot that other members have published, and reports what differs from what was known here.
void member_log::load_snapshot() {
  for (std::optional<std::uint64_t> before;;) {
    if (const auto text = where()->try_get("members")) {
      membership there = membership::decode(*text);
      if (there.index() > members_.index()) report_difference(std::exchange(members_, std::move(there)));
    }
    // All entries in one round trip.
    std::map<std::uint64_t, std::string> entries;
    for (store_entry& each : where()->list("log/")) {
      entries.emplace(to_number(std::string_view(each.key).substr(4)), std::move(each.value));
    }
    // Among removed entries there may be a new one of a writer that has yet to detect the removal (append()).
    if (number_at("trimmed") > members_.index()) {
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

void member_log::report_difference(const membership& known) {
  using what = membership_change::kind;
  for (const auto& [id, record] : known.members()) {
    const worker_record* now = members_.find(record.incarnation);
    if (!now) {
      report({what::gone, record, {}});
      continue;
    }
    if (now->leaving && !record.leaving) report({what::left, *now, {}});
    if (now->suspected != 0 && now->suspected != record.suspected) report({what::suspected, *now, {}});
  }
  for (const auto& [id, record] : members_.members()) {
    if (!known.find(record.incarnation)) report({what::joined, record, {}});
  }
  seen_.store(members_.index(), std::memory_order_release);
}

void member_log::catch_up() {
  const std::lock_guard lock(mutex_);
  read_new(true);
}

void member_log::read_new(bool look_for_gap) {
  for (;;) {
    const std::uint64_t next = members_.index() + 1;
    std::vector<std::string> found;
    while (auto text = where()->try_get(entry_key(next + found.size()))) found.push_back(*std::move(text));
    if (found.empty() && !look_for_gap) return;
    // An entry counts only if those around it had not been removed before: a writer that was suspended for long may
    // have written one in place of a removed entry, and has yet to detect that (append()).
    if (number_at("trimmed") >= next) {
      load_snapshot();
      continue;
    }
    for (std::size_t i = 0; i != found.size(); ++i) take(next + i, found[i]);
    return;
  }
}

membership_change member_log::append(const member_entry& entry) {
  const std::string text = entry.encode();
  const std::lock_guard lock(mutex_);
  for (;;) {
    read_new(false);  // a gap is detected below
    const std::uint64_t next = members_.index() + 1;
    const std::string there = where()->compare_set(entry_key(next), "", text);
    // This process may have been suspended for so long that its place in the log has already been trimmed.
    if (number_at("trimmed") >= next) {
      if (there == text) where()->erase(entry_key(next));
      load_snapshot();
      continue;
    }
    membership_change change = take(next, there);
    if (there != text) continue;
    try {  // the entry stands, even if these writes fail
      where()->set("tail", std::to_string(next));
      if (next % snapshot_interval == 0) publish_members();
    } catch (const error& e) {
      log(log_level::warning,
          fmt::format("entry {} of the group's log in the {} was written, but the keys that depend on it were not: {}",
                      next, where()->describe(), e.message()));
    }
    return change;
  }
}

void member_log::publish_members() {
  const std::string there = where()->try_get("members").value_or("");
  if (!there.empty() && membership::decode(there).index() >= members_.index()) return;
  const std::string text = members_.encode();
  if (where()->compare_set("members", there, text) != text || members_.index() <= kept_entries) return;
  const std::uint64_t last = members_.index() - kept_entries;
  const std::string before = where()->try_get("trimmed").value_or("");
  if (to_number(before) >= last) return;
  if (where()->compare_set("trimmed", before, std::to_string(last)) != std::to_string(last))
    return;  // another member does it
  for (std::uint64_t index = to_number(before) + 1; index <= last; ++index) where()->erase(entry_key(index));
}

bool member_log::wait(deadline until) {
  std::uint64_t version = 0;
  {
    const std::lock_guard lock(waiting_mutex_);
    version = tail_version_;
  }
  const timeout limit =
      until.is_never() ? no_timeout : timeout(std::max(until.remaining(), std::chrono::nanoseconds(1)));
  try {
    const store_change change = where()->wait_change("tail", version, limit);
    const std::lock_guard lock(waiting_mutex_);
    tail_version_ = change.version;
    return true;
  } catch (const error& e) {
    if (e.kind() == errc::store_timeout) return false;
    throw;
  }
}

}  // namespace ferry::inline v0::detail

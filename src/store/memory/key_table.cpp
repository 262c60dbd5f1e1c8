#include "key_table.hpp"

#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"
#include "../../base/printable.hpp"

namespace ferry::inline v0::detail {

const key_table::entry* key_table::find(std::string_view key) const {
  const auto at = entries_.find(key);
  return at == entries_.end() ? nullptr : &at->second;
}

void key_table::set(std::string_view key, std::string value, std::uint64_t version) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) {
    const std::size_t added = cost(key.size(), value.size());
    entries_.emplace(std::string(key), entry{std::move(value), version});
    bytes_ += added;
    return;
  }
  bytes_ += value.size();
  bytes_ -= at->second.value.size();
  at->second = entry{std::move(value), version};
}

bool key_table::erase(std::string_view key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return false;
  bytes_ -= cost(key.size(), at->second.value.size());
  entries_.erase(at);
  return true;
}

key_table::iterator key_table::first(std::string_view prefix, std::string_view after) const {
  const auto at = after < prefix ? entries_.lower_bound(prefix) : entries_.upper_bound(after);
  return at != entries_.end() && at->first.starts_with(prefix) ? at : entries_.end();
}

std::vector<store_entry> key_table::list(std::string_view prefix) const {
  std::vector<store_entry> found;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end() && at->first.starts_with(prefix); ++at) {
    found.push_back({at->first, at->second.value});
  }
  return found;
}

std::size_t key_table::count(std::string_view prefix) const {
  if (prefix.empty()) return entries_.size();
  std::size_t found = 0;
  for (auto at = entries_.lower_bound(prefix); at != entries_.end() && at->first.starts_with(prefix); ++at) ++found;
  return found;
}

store_change key_table::state(std::string_view key) const {
  const entry* held = find(key);
  return held ? store_change{held->version, held->value} : store_change{};
}

void key_table::clear() {
  entries_.clear();
  bytes_ = 0;
}

std::int64_t sum_of(const key_table::entry* held, std::string_view key, std::int64_t delta) {
  std::int64_t sum = 0;
  if (held) {
    const std::string& text = held->value;
    const auto value = parse_number<std::int64_t>(text);
    if (!value) {
      throw_error(errc::invalid_argument, fmt::format("add on key '{}', which holds {} bytes that are not an integer",
                                                      printable(key), text.size()));
    }
    sum = *value;
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    throw_error(errc::invalid_argument,
                fmt::format("add of {} on key '{}': the sum does not fit 64 bits", delta, printable(key)));
  }
  return sum;
}

bool expectation_holds(const key_table::entry* held, std::string_view expected) {
  return held ? held->value == expected : expected.empty();
}

}  // namespace ferry::inline v0::detail

#include <ferry/store/store.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../base/printable.hpp"

namespace ferry::inline v0 {

deadline store::until(timeout limit) const noexcept { return deadline::after(limit.value_or(default_timeout())); }

void store::check_key(std::string_view key) const {
  if (key.empty()) throw_error(errc::invalid_argument, fmt::format("an empty key was passed to the {}", describe()));
  if (key.size() > max_key_bytes) {
    throw_error(errc::limit_exceeded,
                fmt::format("the key '{}...' has {} bytes; the {} takes at most {}",
                            detail::printable(key.substr(0, 32)), key.size(), describe(), max_key_bytes));
  }
}

void store::check_value(std::string_view key, std::string_view value) const {
  if (value.size() > max_value_bytes()) {
    throw_error(errc::limit_exceeded, fmt::format("the value for key '{}' has {} bytes; the {} takes at most {}",
                                                  detail::printable(key), value.size(), describe(), max_value_bytes()));
  }
}

void store::set(std::string_view key, std::string_view value, timeout limit) {
  check_key(key);
  check_value(key, value);
  do_set(key, value, until(limit));
}

std::string store::get(std::string_view key, timeout limit) {
  check_key(key);
  const std::string keys[] = {std::string(key)};
  return std::move(get(std::span<const std::string>(keys), limit).front());
}

std::vector<std::string> store::get(std::span<const std::string> keys, timeout limit) {
  for (const std::string& key : keys) check_key(key);
  return checked_get(keys, until(limit));
}

std::vector<std::string> store::checked_get(std::span<const std::string> keys, deadline until) {
  std::vector<std::string> values = do_get(keys, true, until);
  if (values.size() == keys.size()) return values;
  throw_error(errc::store_failed, fmt::format("{} gave {} values for {} keys", describe(), values.size(), keys.size()));
}

std::optional<std::string> store::try_get(std::string_view key, timeout limit) {
  check_key(key);
  return do_try_get(key, until(limit));
}

void store::wait(std::span<const std::string> keys, timeout limit) {
  for (const std::string& key : keys) check_key(key);
  do_get(keys, false, until(limit));
}

void store::wait(std::string_view key, timeout limit) {
  const std::string keys[] = {std::string(key)};
  wait(keys, limit);
}

std::int64_t store::add(std::string_view key, std::int64_t delta, timeout limit) {
  check_key(key);
  return do_add(key, delta, until(limit));
}

std::string store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                               timeout limit) {
  check_key(key);
  check_value(key, expected);
  check_value(key, desired);
  return do_compare_set(key, expected, desired, until(limit));
}

bool store::erase(std::string_view key, timeout limit) {
  check_key(key);
  return do_erase(key, until(limit));
}

std::vector<store_entry> store::list(std::string_view prefix, timeout limit) {
  if (!prefix.empty()) check_key(prefix);
  return do_list(prefix, until(limit));
}

std::size_t store::count(std::string_view prefix, timeout limit) {
  if (!prefix.empty()) check_key(prefix);
  return do_count(prefix, until(limit));
}

store_change store::wait_change(std::string_view key, std::uint64_t last_version, timeout limit) {
  check_key(key);
  return do_wait_change(key, last_version, until(limit));
}

bool store::drain(timeout) { return true; }

void store::set_default_timeout(timeout value) {
  if (!value.is_set()) throw_error(errc::invalid_argument, "the default timeout of a store cannot be unset");
  default_timeout_.store(value, std::memory_order_relaxed);
}

namespace detail {

std::string seconds_since(clock::time_point since) {
  return fmt::format("{:.3f} s", detail::in_seconds(clock::now() - since));
}

void throw_keys_missing(const store& where, std::span<const std::string> missing, std::size_t how_many,
                        clock::time_point since) {
  std::string names;
  for (const std::string& key : missing.first(std::min<std::size_t>(missing.size(), 8))) {
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", detail::printable(key));
  }
  if (how_many > 8) names += fmt::format(" and {} more", how_many - 8);
  throw_error(errc::store_timeout, fmt::format("waited {} for key{} {} in the {}", seconds_since(since),
                                               how_many == 1 ? "" : "s", names, where.describe()));
}

void throw_no_change(const store& where, std::string_view key, clock::time_point since) {
  throw_error(errc::store_timeout, fmt::format("waited {} for a change of key '{}' in the {}", seconds_since(since),
                                               detail::printable(key), where.describe()));
}

void throw_store_closed(const store& where) {
  throw_error(errc::store_failed, fmt::format("the {} was closed", where.describe()));
}

}  // namespace detail
}  // namespace ferry::inline v0

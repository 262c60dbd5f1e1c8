#include "bounded_store.hpp"

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/store/prefix_store.hpp>

namespace ferry::inline v0::detail {

template <class Request>
auto bounded_store::ask(const Request& request) const {
  try {
    return request(*store_);
  } catch (const error&) {
    if (!given_up_.load(std::memory_order_acquire)) throw;
  }
  const std::lock_guard lock(mutex_);
  throw_error(errc::store_unreachable, fmt::format("the {} was given up: {}", describe(), reason_));
}

void bounded_store::set(std::string_view key, std::string_view value, deadline until) const {
  ask([&](store& where) {
    where.check_key(key);
    where.check_value(key, value);
    where.do_set(key, value, until);
  });
}

std::string bounded_store::get(std::string_view key, deadline until) const {
  const std::string keys[] = {std::string(key)};
  return std::move(get(keys, until).at(0));
}

std::vector<std::string> bounded_store::get(std::span<const std::string> keys, deadline until) const {
  return ask([&](store& where) {
    for (const std::string& key : keys) where.check_key(key);
    return where.checked_get(keys, until);
  });
}

std::optional<std::string> bounded_store::try_get(std::string_view key, deadline until) const {
  return ask([&](store& where) {
    where.check_key(key);
    return where.do_try_get(key, until);
  });
}

void bounded_store::wait(std::string_view key, deadline until) const {
  ask([&](store& where) {
    const std::string keys[] = {std::string(key)};
    where.check_key(key);
    where.do_get(keys, false, until);
  });
}

std::int64_t bounded_store::add(std::string_view key, std::int64_t delta, deadline until) const {
  return ask([&](store& where) {
    where.check_key(key);
    return where.do_add(key, delta, until);
  });
}

std::string bounded_store::compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                       deadline until) const {
  return ask([&](store& where) {
    where.check_key(key);
    where.check_value(key, expected);
    where.check_value(key, desired);
    return where.do_compare_set(key, expected, desired, until);
  });
}

bool bounded_store::erase(std::string_view key, deadline until) const {
  return ask([&](store& where) {
    where.check_key(key);
    return where.do_erase(key, until);
  });
}

std::vector<store_entry> bounded_store::list(std::string_view prefix, deadline until) const {
  return ask([&](store& where) {
    if (!prefix.empty()) where.check_key(prefix);
    return where.do_list(prefix, until);
  });
}

store_change bounded_store::wait_change(std::string_view key, std::uint64_t last_version, deadline until) const {
  return ask([&](store& where) {
    where.check_key(key);
    return where.do_wait_change(key, last_version, until);
  });
}

std::shared_ptr<bounded_store> bounded_store::below(std::string_view prefix) const {
  return std::make_shared<bounded_store>(std::make_shared<prefix_store>(prefix, store_));
}

void bounded_store::give_up(const std::string& reason) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) reason_ = reason;
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: a store is given up without its reason");
  }
  given_up_.store(true, std::memory_order_release);
  close();
}

}  // namespace ferry::inline v0::detail

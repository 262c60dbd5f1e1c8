#include <ferry/store/hash_store.hpp>

#include <condition_variable>
#include <mutex>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>

#include "key_table.hpp"

namespace ferry::inline v0 {

struct hash_store::content {
  std::mutex mutex;
  std::condition_variable changed;
  detail::key_table table;
  std::uint64_t revision = 0;
};

hash_store::hash_store() : content_(std::make_shared<content>()) {}
hash_store::hash_store(std::shared_ptr<content> shared) : content_(std::move(shared)) {}
hash_store::~hash_store() = default;

std::shared_ptr<hash_store> hash_store::share() const { return std::shared_ptr<hash_store>(new hash_store(content_)); }

void hash_store::close() noexcept {
  {
    const std::lock_guard lock(content_->mutex);
    closed_ = true;
  }
  content_->changed.notify_all();
}

std::string hash_store::describe() const { return "hash store"; }

// Runs `done` under the lock until it returns true; false if the deadline passed first.
template <class Done>
bool hash_store::wait_until(deadline until, Done done) {
  const auto finished = [&] {
    if (closed_) detail::throw_store_closed(*this);
    return done();
  };
  {
    const std::lock_guard lock(content_->mutex);
    if (finished()) return true;
  }
  const blocking_scope blocking;  // outlives the lock: leaving it may block as well
  std::unique_lock lock(content_->mutex);
  if (until.is_never()) {
    content_->changed.wait(lock, finished);
    return true;
  }
  return content_->changed.wait_until(lock, until.at(), finished);
}

// Runs `change` under the lock and wakes the waiters.
template <class Change>
auto hash_store::update(Change change) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  auto result = change(content_->table);
  content_->changed.notify_all();
  return result;
}

void hash_store::do_set(std::string_view key, std::string_view value, deadline) {
  update([&](detail::key_table& table) {
    table.set(key, std::string(value), ++content_->revision);
    return true;
  });
}

std::vector<std::string> hash_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  const auto since = clock::now();
  std::vector<std::string> found;
  std::vector<std::string> missing;
  const bool complete = wait_until(until, [&] {
    missing.clear();
    for (const std::string& key : keys) {
      if (!content_->table.find(key)) missing.push_back(key);
    }
    if (!missing.empty()) return false;
    if (values) {
      for (const std::string& key : keys) found.push_back(content_->table.find(key)->value);
    }
    return true;
  });
  if (!complete) detail::throw_keys_missing(*this, missing, missing.size(), since);
  return found;
}

std::optional<std::string> hash_store::do_try_get(std::string_view key, deadline) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  return content_->table.state(key).value;
}

std::int64_t hash_store::do_add(std::string_view key, std::int64_t delta, deadline) {
  return update([&](detail::key_table& table) {
    const std::int64_t sum = detail::sum_of(table.find(key), key, delta);
    table.set(key, std::to_string(sum), ++content_->revision);
    return sum;
  });
}

std::string hash_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                       deadline) {
  return update([&](detail::key_table& table) {
    const auto* held = table.find(key);
    if (!detail::expectation_holds(held, expected)) return held ? held->value : std::string();
    table.set(key, std::string(desired), ++content_->revision);
    return std::string(desired);
  });
}

bool hash_store::do_erase(std::string_view key, deadline) {
  return update([&](detail::key_table& table) { return table.erase(key); });
}

std::vector<store_entry> hash_store::do_list(std::string_view prefix, deadline) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  return content_->table.list(prefix);
}

std::size_t hash_store::do_count(std::string_view prefix, deadline) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  return content_->table.count(prefix);
}

store_change hash_store::do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) {
  const auto since = clock::now();
  store_change state;
  const bool changed = wait_until(until, [&] {
    const auto* held = content_->table.find(key);
    if ((held ? held->version : 0) == last_version) return false;
    state = content_->table.state(key);
    return true;
  });
  if (!changed) detail::throw_no_change(*this, key, since);
  return state;
}

}  // namespace ferry::inline v0

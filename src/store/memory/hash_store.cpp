#include <ferry/store/hash_store.hpp>

#include <algorithm>
#include <condition_variable>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>

#include "key_table.hpp"

namespace ferry::inline v0 {

// A thread that waits for keys. It is registered under one that is missing, and woken once none is missing: waits of
// other threads cost it nothing, however many there are. Guarded by the content's mutex.
struct hash_store::waiter {
  using by_key = std::multimap<std::string_view, waiter*>;  // the keys are the waiters' own

  explicit waiter(const hash_store& through) : handle(&through) {}
  /// The next missing key after the one returned last; null: none is missing.
  virtual const std::string* missing() noexcept = 0;

  const hash_store* const handle;
  std::condition_variable changed;
  by_key::iterator place;  // valid while it waits
  bool woken = false;

 protected:
  ~waiter() = default;
};

struct hash_store::content {
  std::mutex mutex;
  detail::key_table table;
  std::uint64_t revision = 0;
  waiter::by_key waiting;

  void key_changed(std::string_view key) noexcept {
    for (auto at = waiting.lower_bound(key); at != waiting.end() && at->first == key;) {
      const auto here = at++;
      waiter& who = *here->second;
      const std::string* next = who.missing();
      if (next && *next == key) continue;
      auto node = waiting.extract(here);
      if (next) {
        node.key() = *next;
        who.place = waiting.insert(std::move(node));
      } else {
        who.woken = true;
        who.changed.notify_one();
      }
    }
  }
};

hash_store::hash_store() : content_(std::make_shared<content>()) {}
hash_store::hash_store(std::shared_ptr<content> shared) : content_(std::move(shared)) {}
hash_store::~hash_store() = default;

std::shared_ptr<hash_store> hash_store::share() const { return std::shared_ptr<hash_store>(new hash_store(content_)); }

void hash_store::close() noexcept {
  const std::lock_guard lock(content_->mutex);
  closed_ = true;
  for (auto& [key, who] : content_->waiting) {
    if (who->handle == this) who->changed.notify_one();
  }
}

std::string hash_store::describe() const { return "hash store"; }

// Waits until `who` misses no key, and runs `take` under the same lock; false if the deadline passed first.
template <class Waiter, class Take>
bool hash_store::wait_until(deadline until, Waiter& who, Take take) {
  const auto look = [&] {
    if (closed_) detail::throw_store_closed(*this);
    who.begin();
    const std::string* key = who.missing();
    if (!key) take();
    return key;
  };
  {
    const std::lock_guard lock(content_->mutex);
    if (!look()) return true;
  }
  const blocking_scope blocking;  // outlives the lock: leaving it may block as well
  std::unique_lock lock(content_->mutex);
  // A key may have been removed before the thread runs again.
  while (const std::string* key = look()) {
    who.woken = false;
    who.place = content_->waiting.emplace(*key, &who);
    const auto ended = [&] { return who.woken || closed_; };
    if (until.is_never()) {
      who.changed.wait(lock, ended);
    } else {
      (void)who.changed.wait_until(lock, until.at(), ended);
    }
    if (who.woken) continue;
    content_->waiting.erase(who.place);
    if (closed_) detail::throw_store_closed(*this);
    return false;
  }
  return true;
}

// Runs `change` under the lock and wakes only the waiters for `key`.
template <class Change>
auto hash_store::update(std::string_view key, Change change) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  auto result = change(content_->table);
  content_->key_changed(key);
  return result;
}

void hash_store::do_set(std::string_view key, std::string_view value, deadline) {
  update(key, [&](detail::key_table& table) {
    table.set(key, std::string(value), ++content_->revision);
    return true;
  });
}

std::vector<std::string> hash_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  struct all_keys final : waiter {
    all_keys(const hash_store& through, std::span<const std::string> names) : waiter(through), keys(names) {}
    void begin() noexcept { there = 0; }
    const std::string* missing() noexcept override {
      while (there != keys.size() && handle->content_->table.find(keys[there])) ++there;
      return there == keys.size() ? nullptr : &keys[there];
    }
    const std::span<const std::string> keys;
    std::size_t there = 0;  // this many of the first ones exist
  };
  const auto since = clock::now();
  std::vector<std::string> found;
  all_keys who(*this, keys);
  const bool complete = wait_until(until, who, [&] {
    if (!values) return;
    found.reserve(keys.size());
    for (const std::string& key : keys) found.push_back(content_->table.find(key)->value);
  });
  if (complete) return found;
  std::vector<std::string> missing;
  {
    const std::lock_guard lock(content_->mutex);
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(missing),
                 [&](const std::string& key) { return !content_->table.find(key); });
  }
  detail::throw_keys_missing(*this, missing, missing.size(), since);
}

std::optional<std::string> hash_store::do_try_get(std::string_view key, deadline) {
  const std::lock_guard lock(content_->mutex);
  if (closed_) detail::throw_store_closed(*this);
  return content_->table.state(key).value;
}

std::int64_t hash_store::do_add(std::string_view key, std::int64_t delta, deadline) {
  return update(key, [&](detail::key_table& table) {
    const std::int64_t sum = detail::sum_of(table.find(key), key, delta);
    table.set(key, std::to_string(sum), ++content_->revision);
    return sum;
  });
}

std::string hash_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                       deadline) {
  return update(key, [&](detail::key_table& table) {
    const auto* held = table.find(key);
    if (!detail::expectation_holds(held, expected)) return held ? held->value : std::string();
    table.set(key, std::string(desired), ++content_->revision);
    return std::string(desired);
  });
}

bool hash_store::do_erase(std::string_view key, deadline) {
  return update(key, [&](detail::key_table& table) { return table.erase(key); });
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
  struct one_key final : waiter {
    one_key(const hash_store& through, std::string_view name, std::uint64_t seen)
        : waiter(through), key(name), version(seen) {}
    void begin() noexcept {}
    const std::string* missing() noexcept override {
      const auto* held = handle->content_->table.find(key);
      return (held ? held->version : 0) == version ? &key : nullptr;
    }
    const std::string key;
    const std::uint64_t version;
  };
  const auto since = clock::now();
  store_change state;
  one_key who(*this, key, last_version);
  if (!wait_until(until, who, [&] { state = content_->table.state(key); })) detail::throw_no_change(*this, key, since);
  return state;
}

}  // namespace ferry::inline v0

#include <ferry/store/file_store.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/base/work.hpp>

#include "../interrupt.hpp"
#include "../memory/key_table.hpp"
#include "file_log.hpp"

namespace ferry::inline v0 {

using namespace std::chrono_literals;

struct file_store::state {
  state(const std::string& path_, std::size_t max_value_bytes) : path(path_), log(path_, max_value_bytes) {}

  const std::string path;
  detail::interrupt closing;
  std::mutex mutex;  // guards what follows
  detail::file_log log;
  detail::key_table table;
  std::condition_variable turn;
  clock::time_point last_write;
  bool has_turn = false;  // a thread holds, or waits for, the file's lock, which is per open file description
};

file_store::~file_store() = default;

void file_store::close() noexcept {
  state_->closing.raise();
  state_->turn.notify_all();
}

std::string file_store::describe() const { return fmt::format("file store '{}'", state_->path); }

// Runs `action` with the file's lock held and the table up to date.
template <class Action>
auto file_store::exclusively(deadline until, Action action) {
  const auto since = clock::now();
  const auto check_closed = [&] {
    if (state_->closing.raised()) detail::throw_store_closed(*this);
  };
  const auto too_late = [&] {
    throw_error(errc::store_timeout,
                fmt::format("waited {} for the lock of the {}, which another process or thread holds",
                            detail::seconds_since(since), describe()));
  };
  const blocking_scope blocking;
  std::unique_lock lock(state_->mutex);
  // Wakes up from time to time, because close() does not take the mutex.
  while (state_->has_turn) {
    check_closed();
    if (until.expired()) too_late();
    state_->turn.wait_until(lock, detail::sooner(until, 100ms).at());
  }
  check_closed();
  state_->has_turn = true;
  struct end_of_turn {
    file_store& self;
    std::unique_lock<std::mutex>& lock;
    bool locked = false;
    ~end_of_turn() {
      if (!lock.owns_lock()) lock.lock();
      if (locked) self.state_->log.unlock();
      self.state_->last_write = clock::now();
      self.state_->has_turn = false;
      self.state_->turn.notify_one();
    }
  } turn{*this, lock};

  const auto sleep = [&](std::chrono::nanoseconds pause) {
    lock.unlock();
    const auto slept = state_->closing.sleep(pause, until);
    lock.lock();
    if (slept == detail::interrupt::outcome::interrupted) detail::throw_store_closed(*this);
  };
  // flock is not fair: a thread that writes continuously would starve the others, so it pauses half of the time.
  if (clock::now() - state_->last_write < 1ms) sleep(50us);
  // Short pauses: a writer holds the lock for microseconds.
  for (std::chrono::nanoseconds pause = 50us; !(turn.locked = state_->log.try_lock());
       pause = std::min<std::chrono::nanoseconds>(pause * 2, 2ms)) {
    if (until.expired()) too_late();
    sleep(pause);
  }
  state_->log.read_new_and_repair(state_->table);
  return action();
}

// Runs `look` with the table up to date.
template <class Look>
auto file_store::looking(deadline until, Look look) {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->closing.raised()) detail::throw_store_closed(*this);
    if (state_->log.read_new(state_->table)) return look();
  }
  // An apparently damaged record may have been incomplete: check again with the lock held.
  return exclusively(until, look);
}

// Runs `done` after every change of the file until it returns true; false if the deadline passed first.
template <class Done>
bool file_store::wait_until(deadline until, Done done) {
  if (looking(until, done)) return true;
  // inotify has a per-user limit and does not report writes by other hosts, so there is polling as well: rarely with
  // inotify, often without it.
  detail::unique_fd watch(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (watch && ::inotify_add_watch(watch.get(), state_->path.c_str(), IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF) < 0) {
    watch.reset();
  }
  const std::chrono::nanoseconds longest = watch ? 250ms : 20ms;
  for (std::chrono::nanoseconds pause = 1ms;; pause = std::min(pause * 2, longest)) {
    if (looking(until, done)) return true;
    if (until.expired()) return false;
    const auto woken = [&] {
      const blocking_scope blocking;
      return state_->closing.wait(watch.get(), POLLIN, detail::sooner(until, watch ? longest : pause));
    }();
    if (woken == detail::interrupt::outcome::interrupted) detail::throw_store_closed(*this);
    if (woken == detail::interrupt::outcome::ready) {
      alignas(inotify_event) char events[4096];
      while (::read(watch.get(), events, sizeof(events)) > 0) {
      }
    }
  }
}

file_store::file_store(const std::string& path, timeout limit, std::size_t max_value_bytes)
    : store(max_value_bytes), state_(std::make_unique<state>(path, max_value_bytes)) {
  // Checks the file, or initialises it if it is empty.
  if (!looking(deadline::after(limit.value_or(default_timeout())), [&] { return state_->log.has_header(); })) {
    exclusively(deadline::after(limit.value_or(default_timeout())), [] { return true; });
  }
}

void file_store::do_set(std::string_view key, std::string_view value, deadline until) {
  exclusively(until, [&] {
    state_->log.set(state_->table, key, value);
    return true;
  });
}

std::vector<std::string> file_store::do_get(std::span<const std::string> keys, bool values, deadline until) {
  const auto since = clock::now();
  std::vector<std::string> found;
  std::vector<std::string> missing;
  const bool complete = wait_until(until, [&] {
    missing.clear();
    for (const std::string& key : keys) {
      if (!state_->table.find(key)) missing.push_back(key);
    }
    if (!missing.empty()) return false;
    if (values) {
      for (const std::string& key : keys) found.push_back(state_->table.find(key)->value);
    }
    return true;
  });
  if (!complete) detail::throw_keys_missing(*this, missing, missing.size(), since);
  return found;
}

std::optional<std::string> file_store::do_try_get(std::string_view key, deadline until) {
  return looking(until, [&] { return state_->table.state(key).value; });
}

std::int64_t file_store::do_add(std::string_view key, std::int64_t delta, deadline until) {
  return exclusively(until, [&] {
    const std::int64_t sum = detail::sum_of(state_->table.find(key), key, delta);
    state_->log.set(state_->table, key, std::to_string(sum));
    return sum;
  });
}

std::string file_store::do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                                       deadline until) {
  return exclusively(until, [&] {
    const auto* held = state_->table.find(key);
    if (!detail::expectation_holds(held, expected)) return held ? held->value : std::string();
    state_->log.set(state_->table, key, desired);
    return std::string(desired);
  });
}

bool file_store::do_erase(std::string_view key, deadline until) {
  return exclusively(until, [&] {
    if (!state_->table.find(key)) return false;
    state_->log.erase(state_->table, key);
    return true;
  });
}

std::vector<store_entry> file_store::do_list(std::string_view prefix, deadline until) {
  return looking(until, [&] { return state_->table.list(prefix); });
}

std::size_t file_store::do_count(std::string_view prefix, deadline until) {
  return looking(until, [&] { return state_->table.count(prefix); });
}

store_change file_store::do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) {
  const auto since = clock::now();
  store_change now;
  const bool changed = wait_until(until, [&] {
    const auto* held = state_->table.find(key);
    if ((held ? held->version : 0) == last_version) return false;
    now = state_->table.state(key);
    return true;
  });
  if (!changed) detail::throw_no_change(*this, key, since);
  return now;
}

}  // namespace ferry::inline v0

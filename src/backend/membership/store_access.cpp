#include "store_access.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../detached.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds first_pause{100};
constexpr std::chrono::milliseconds longest_retry_pause{2000};

// True if `done` returned true before the deadline.
template <class Done>
bool wait_in_time(ranked_condition& changed, ranked_lock& lock, deadline until, const Done& done) {
  if (!until.is_never()) return changed.wait_until(lock, until.at(), done);
  changed.wait(lock, done);
  return true;
}

}  // namespace

// ---------------------------------------------------------------- the store

std::shared_ptr<bounded_store> store_access::store() const {
  const std::lock_guard lock(mutex_);
  return store_;
}

void store_access::replace_store(std::shared_ptr<bounded_store> by) noexcept {
  const std::lock_guard lock(mutex_);
  store_.swap(by);  // released without the lock, by the caller
}

// ---------------------------------------------------------------- reading

std::uint64_t store_access::request_read() noexcept {
  std::uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    number = ++reads_wanted_;
    if (std::exchange(reading_, true)) return number;
  }
  try {
    run_detached(*threads_, [this, kept = user_.keep_alive()] { read_for_all(); });
  } catch (const std::exception&) {
    {
      std::lock_guard lock(mutex_);
      reading_ = false;
      reads_done_ = reads_wanted_;
    }
    changed_.notify_all();
  }
  return number;
}

void store_access::read_for_all() noexcept {
  for (;;) {
    std::uint64_t number = 0;
    {
      std::lock_guard lock(mutex_);
      number = reads_wanted_;
    }
    const bool read = user_.catch_up();
    std::lock_guard lock(mutex_);
    if (read) reads_good_ = number;
    reads_done_ = number;  // requests made while the store hung have their own time, and get another read
    reading_ = reads_wanted_ != reads_done_;
    changed_.notify_all();
    if (!reading_) return;
  }
}

bool store_access::read_log(deadline until, const std::function<bool()>& enough) {
  const blocking_scope blocking;
  const std::uint64_t number = request_read();
  ranked_lock lock(mutex_);
  const bool in_time = wait_in_time(changed_, lock, until,
                                    [&] { return reads_done_ >= number || user_.ended() || (enough && enough()); });
  return in_time && (reads_done_ < number || reads_good_ >= number);
}

std::uint64_t store_access::last_good_read() const noexcept {
  const std::lock_guard lock(mutex_);
  return reads_good_;
}

// ---------------------------------------------------------------- writing

struct store_access::background_action {
  bool done = false;  // this and the next one are guarded by mutex_
  std::exception_ptr error;
};

std::shared_ptr<store_access::background_action> store_access::run_in_background(std::function<void()> action) {
  const auto state = std::make_shared<background_action>();
  run_detached(*threads_, [this, kept = user_.keep_alive(), state, action = std::move(action)] {
    std::exception_ptr error;
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      state->done = true;
      state->error = std::move(error);
    }
    changed_.notify_all();
  });
  return state;
}

bool store_access::await_background(background_action& action, deadline until, const std::function<bool()>& unwanted) {
  const blocking_scope blocking;
  ranked_lock lock(mutex_);
  (void)wait_in_time(changed_, lock, until, [&] { return action.done || (unwanted && unwanted()); });
  if (!action.done) return false;
  if (action.error) std::rethrow_exception(action.error);
  return true;
}

bool store_access::run_in_time(std::function<void()> action, deadline until, const std::function<bool()>& unwanted) {
  return await_background(*run_in_background(std::move(action)), until, unwanted);
}

void store_access::write_later(std::function<void()> write, std::string what, bool urgent) noexcept {
  try {
    add_write(std::move(write), std::move(what), urgent);
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{} could not start a write to the store: {}", user_.name(), e.what()));
  }
}

void store_access::add_write(std::function<void()> write, std::string what, bool urgent) {
  {
    std::lock_guard lock(mutex_);
    if (user_.ended()) return;
    pending_write item{std::move(write), std::move(what)};
    if (urgent) {
      to_write_.push_front(std::move(item));
    } else {
      to_write_.push_back(std::move(item));
    }
    write_added_ = true;
    if (std::exchange(writing_, true)) {
      changed_.notify_all();
      return;
    }
  }
  try {
    run_detached(*threads_, [this, kept = user_.keep_alive()] { write_pending(); });
  } catch (...) {
    std::lock_guard lock(mutex_);
    writing_ = false;  // the next write starts this one, too
    throw;
  }
}

void store_access::write_pending() noexcept {
  auto pause = first_pause;
  ranked_lock lock(mutex_);
  while (!to_write_.empty() && !user_.ended()) {
    pending_write next = std::move(to_write_.front());
    to_write_.pop_front();
    write_added_ = false;
    lock.unlock();
    bool written = false;
    try {
      next.write();
      written = true;
    } catch (const std::exception& e) {
      log(log_level::info,
          fmt::format("{}: the store has no record yet that {}: {}", user_.name(), next.what, e.what()));
    }
    if (written) {
      pause = first_pause;
      next = {};  // destroys what it holds without the lock
      lock.lock();
      continue;
    }
    lock.lock();
    to_write_.push_back(std::move(next));
    (void)changed_.wait_for(lock, pause, [&] { return user_.ended() || write_added_; });
    pause = std::min(2 * pause, longest_retry_pause);
  }
  writing_ = false;
  std::deque<pending_write> dropped;
  if (user_.ended()) dropped.swap(to_write_);
  lock.unlock();
}

// ---------------------------------------------------------------- changes

void store_access::wake_waiting() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ++member_changes_;
  }
  changed_.notify_all();
}

std::uint64_t store_access::member_changes() const noexcept {
  const std::lock_guard lock(mutex_);
  return member_changes_;
}

bool store_access::await_change(std::uint64_t seen, deadline until) {
  ranked_lock lock(mutex_);
  return wait_in_time(changed_, lock, until, [&] { return member_changes_ != seen; });
}

void store_access::pause(std::chrono::nanoseconds pause) {
  ranked_lock lock(mutex_);
  (void)changed_.wait_for(lock, pause, [&] { return user_.closing(); });
}

}  // namespace ferry::inline v0::detail

// Access to the store that cannot block a member if the store hangs. Requests to the store run on threads that may
// block; each ends by itself within seconds. A caller that needs the result waits up to its own deadline, and marks its
// thread as blocked for the handler pool. One thread reads the log for all callers, and one performs the pending
// writes.

#include <algorithm>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/log.hpp>

#include "../agent/native_agent.hpp"
#include "../detached.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds first_pause{100};
constexpr std::chrono::milliseconds longest_retry_pause{2000};

// True if `done` returned true before the deadline.
template <class Done>
bool wait_in_time(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, deadline until,
                  const Done& done) {
  if (!until.is_never()) return changed.wait_until(lock, until.at(), done);
  changed.wait(lock, done);
  return true;
}

}  // namespace

// ---------------------------------------------------------------- reading

std::uint64_t native_core::request_read() const noexcept {
  std::uint64_t number = 0;
  {
    std::lock_guard lock(members_mutex_);
    number = ++reads_wanted_;
    if (std::exchange(reading_, true)) return number;
  }
  try {
    run_detached(*reactor_, [self = shared_from_this()] { self->read_for_all(); });
  } catch (const std::exception&) {
    {
      std::lock_guard lock(members_mutex_);
      reading_ = log_readable_ = false;
      reads_done_ = reads_wanted_;
    }
    members_changed_.notify_all();
  }
  return number;
}

void native_core::read_for_all() const noexcept {
  for (;;) {
    std::uint64_t number = 0;
    {
      std::lock_guard lock(members_mutex_);
      number = reads_wanted_;
    }
    const bool read = catch_up();
    std::lock_guard lock(members_mutex_);
    if (read) reads_good_ = number;
    reads_done_ = read ? number : reads_wanted_;  // requests made while the store hung have failed, too
    log_readable_ = read;
    reading_ = reads_wanted_ != reads_done_;
    members_changed_.notify_all();
    if (!reading_) return;
  }
}

bool native_core::read_log(deadline until, const std::function<bool()>& enough) const {
  const blocking_scope blocking;
  const std::uint64_t number = request_read();
  std::unique_lock lock(members_mutex_);
  const bool in_time = wait_in_time(members_changed_, lock, until, [&] {
    return reads_done_ >= number || closing_.load() || fenced_.load() || (enough && enough());
  });
  return in_time && (reads_done_ < number || log_readable_);
}

bool native_core::update_workers(deadline until) const {
  return !log_ || read_log(std::min(until, deadline::after(store_limit)));
}

// ---------------------------------------------------------------- writing

struct native_core::background_action {
  bool done = false;  // this and the next one are guarded by members_mutex_
  std::exception_ptr error;
};

std::shared_ptr<native_core::background_action> native_core::run_in_background(std::function<void()> action) {
  const auto state = std::make_shared<background_action>();
  run_detached(*reactor_, [self = shared_from_this(), state, action = std::move(action)] {
    std::exception_ptr error;
    try {
      action();
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard lock(self->members_mutex_);
      state->done = true;
      state->error = std::move(error);
    }
    self->members_changed_.notify_all();
  });
  return state;
}

bool native_core::await_background(background_action& action, deadline until, const std::function<bool()>& unwanted) {
  const blocking_scope blocking;
  std::unique_lock lock(members_mutex_);
  (void)wait_in_time(members_changed_, lock, until, [&] { return action.done || (unwanted && unwanted()); });
  if (!action.done) return false;
  if (action.error) std::rethrow_exception(action.error);
  return true;
}

bool native_core::run_in_time(std::function<void()> action, deadline until, const std::function<bool()>& unwanted) {
  return await_background(*run_in_background(std::move(action)), until, unwanted);
}

void native_core::write_later(std::function<void()> write, std::string what, bool urgent) noexcept {
  try {
    add_write(std::move(write), std::move(what), urgent);
  } catch (const std::exception& e) {
    log(log_level::warning, fmt::format("{} could not start a write to the store: {}", self_.name(), e.what()));
  }
}

void native_core::add_write(std::function<void()> write, std::string what, bool urgent) {
  {
    std::lock_guard lock(members_mutex_);
    if (closing_.load() || fenced_.load()) return;
    pending_write item{std::move(write), std::move(what)};
    if (urgent) {
      to_write_.push_front(std::move(item));
    } else {
      to_write_.push_back(std::move(item));
    }
    write_added_ = true;
    if (std::exchange(writing_, true)) {
      members_changed_.notify_all();
      return;
    }
  }
  try {
    run_detached(*reactor_, [self = shared_from_this()] { self->write_pending(); });
  } catch (...) {
    std::lock_guard lock(members_mutex_);
    writing_ = false;  // the next write starts this one, too
    throw;
  }
}

void native_core::write_pending() noexcept {
  auto pause = first_pause;
  std::unique_lock lock(members_mutex_);
  const auto over = [&] { return closing_.load() || fenced_.load(); };
  while (!to_write_.empty() && !over()) {
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
          fmt::format("{}: the store has no record yet that {}: {}", to_string(self_), next.what, e.what()));
    }
    if (written) {
      pause = first_pause;
      next = {};  // destroys what it holds without the lock
      lock.lock();
      continue;
    }
    lock.lock();
    to_write_.push_back(std::move(next));
    (void)members_changed_.wait_for(lock, pause, [&] { return over() || write_added_; });
    pause = std::min(2 * pause, longest_retry_pause);
  }
  writing_ = false;
  std::deque<pending_write> dropped;
  if (over()) dropped.swap(to_write_);
  lock.unlock();
}

}  // namespace ferry::inline v0::detail

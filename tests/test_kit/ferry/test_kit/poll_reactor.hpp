#pragma once

// Part of the test kit: a reactor that shares nothing with that of the library. One thread waits in poll(2) and runs a
// queue; while it blocks in a handler, another one does. An example of how little a backend or transport with threads of
// its own needs, and the proof that connections and calls work over it.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/transport/reactor.hpp>

namespace ferry::test_kit {

class poll_reactor final : public ferry::reactor {
 public:
  /// The threads end with the last copy of the result, although connections that are still open share it. Throws
  /// errc::system_failure.
  [[nodiscard]] static std::shared_ptr<ferry::reactor> start() {
    const auto made = std::make_shared<poll_reactor>();
    {
      const std::lock_guard lock(made->mutex_);
      made->start_thread();
    }
    return {made.get(), [made](ferry::reactor*) { made->stop(); }};
  }

  /// Use start().
  poll_reactor() : wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (wake_ < 0) ferry::throw_errno(ferry::errc::system_failure, "making an eventfd", errno);
  }
  ~poll_reactor() override { ::close(wake_); }
  poll_reactor(const poll_reactor&) = delete;
  poll_reactor& operator=(const poll_reactor&) = delete;

  void post(ferry::work* item) noexcept override {
    const std::lock_guard lock(mutex_);
    push(item);
    if (threads_ == 0) start_thread();  // it has been stopped
    wake();
  }

  ferry::watch_id watch(int descriptor, std::shared_ptr<ferry::descriptor_handler> handler, bool readable,
                        bool writable) override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t id = ++last_id_;
    watched_.emplace(id, watched{descriptor, std::move(handler), readable, writable, {}});
    wake();
    return ferry::watch_id{id};
  }
  void rewatch(ferry::watch_id which, bool readable, bool writable) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = watched_.find(static_cast<std::uint64_t>(which));
    if (found == watched_.end()) return;
    found->second.readable = readable;
    found->second.writable = writable;
    found->second.rests_until = {};
    wake();
  }
  void unwatch(ferry::watch_id which) noexcept override {
    std::shared_ptr<ferry::descriptor_handler> released;  // without the lock
    const std::lock_guard lock(mutex_);
    const auto found = watched_.find(static_cast<std::uint64_t>(which));
    if (found == watched_.end()) return;
    released = std::move(found->second.handler);
    watched_.erase(found);
    wake();
  }

  ferry::timer_id start_timer(ferry::deadline at, ferry::work* item) override {
    const std::lock_guard lock(mutex_);
    const std::uint64_t id = ++last_id_;
    timers_.emplace(std::pair{at.at(), id}, item);
    timer_times_.emplace(id, at.at());
    wake();
    return ferry::timer_id{id};
  }
  bool cancel_timer(ferry::timer_id which) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto found = timer_times_.find(static_cast<std::uint64_t>(which));
    if (found == timer_times_.end()) return false;
    timers_.erase({found->second, found->first});
    timer_times_.erase(found);
    return true;
  }

  void begin_blocking() noexcept override {
    if (current() != this || blocked()++ != 0) return;
    const std::lock_guard lock(mutex_);
    if (--serving_ == 0) start_thread();
  }
  void end_blocking() noexcept override {
    if (current() != this || --blocked() != 0) return;
    const std::lock_guard lock(mutex_);
    ++serving_;
  }

 private:
  using time = ferry::clock::time_point;
  // poll(2) reports a descriptor for as long as it is ready; the handlers expect that only changes are reported. One that
  // has been reported rests for a while, since its handler may have left input unread.
  static constexpr std::chrono::milliseconds rest{1};
  struct watched {
    int descriptor;
    std::shared_ptr<ferry::descriptor_handler> handler;
    bool readable;
    bool writable;
    time rests_until;
  };

  static const poll_reactor*& current() noexcept {
    thread_local const poll_reactor* of = nullptr;
    return of;
  }
  static int& blocked() noexcept {
    thread_local int depth = 0;
    return depth;
  }

  // Call the following with mutex_ held.
  void wake() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof one);
  }
  void push(ferry::work* item) noexcept {
    item->next = nullptr;
    (last_ ? last_->next : first_) = item;
    last_ = item;
  }
  void start_thread() {
    ++threads_;
    ++serving_;
    std::thread([self = std::static_pointer_cast<poll_reactor>(shared_from_this())] { self->serve(); }).detach();
  }

  void stop() noexcept {
    std::map<std::uint64_t, watched> released;
    std::unique_lock lock(mutex_);
    stopping_ = true;
    wake();
    const int own = current() == this ? 1 : 0;
    ended_.wait(lock, [&] { return threads_ <= own; });
    released.swap(watched_);
    lock.unlock();
  }

  void serve() noexcept {
    current() = this;
    std::unique_lock lock(mutex_);
    // A thread that has been replaced while it blocked is one too many.
    while (serving_ == 1 && !(stopping_ && !first_)) {
      const time now = ferry::clock::now();
      while (!timers_.empty() && timers_.begin()->first.first <= now) {
        timer_times_.erase(timers_.begin()->first.second);
        push(timers_.begin()->second);
        timers_.erase(timers_.begin());
      }
      if (ferry::work* const item = first_) {
        first_ = item->next;
        if (!first_) last_ = nullptr;
        lock.unlock();
        item->run(item);
        lock.lock();
      } else {
        wait_for_event(lock, now);
      }
    }
    --serving_;
    current() = nullptr;
    --threads_;
    ended_.notify_all();
  }

  // Serves one event: further ones must not wait behind a handler.
  void wait_for_event(std::unique_lock<std::mutex>& lock, time now) {
    std::vector<pollfd> polled{{wake_, POLLIN, 0}};
    std::vector<std::uint64_t> ids{0};
    time until = now + std::chrono::hours(1);
    if (!timers_.empty()) until = std::min(until, timers_.begin()->first.first);
    // The one that was served last comes last.
    const auto add = [&](const auto& each) {
      const watched& one = each.second;
      if (one.rests_until > now) {
        until = std::min(until, one.rests_until);
        return;
      }
      const int events = (one.readable ? POLLIN | POLLRDHUP : 0) | (one.writable ? POLLOUT : 0);
      polled.push_back({one.descriptor, static_cast<short>(events), 0});
      ids.push_back(each.first);
    };
    const auto middle = watched_.upper_bound(last_served_);
    std::for_each(middle, watched_.end(), add);
    std::for_each(watched_.begin(), middle, add);
    const auto limit = std::chrono::ceil<std::chrono::milliseconds>(until - now);
    lock.unlock();
    (void)::poll(polled.data(), polled.size(), static_cast<int>(limit.count()));
    lock.lock();
    if (polled[0].revents != 0) {
      std::uint64_t ignored = 0;
      (void)!::read(wake_, &ignored, sizeof ignored);
    }
    for (std::size_t i = 1; i != polled.size(); ++i) {
      const int events = polled[i].revents;
      const auto found = watched_.find(ids[i]);
      if (events == 0 || found == watched_.end()) continue;
      last_served_ = ids[i];
      found->second.rests_until = ferry::clock::now() + rest;
      auto handler = found->second.handler;
      lock.unlock();
      handler->on_ready({.readable = (events & (POLLIN | POLLRDHUP | POLLHUP | POLLERR)) != 0,
                         .writable = (events & (POLLOUT | POLLHUP | POLLERR)) != 0,
                         .hung_up = (events & (POLLRDHUP | POLLHUP | POLLERR)) != 0});
      handler.reset();
      lock.lock();
      return;
    }
  }

  const int wake_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  int threads_ = 0;
  int serving_ = 0;  // threads that do not block: one, or briefly two
  bool stopping_ = false;
  ferry::work* first_ = nullptr;
  ferry::work* last_ = nullptr;
  std::uint64_t last_id_ = 0;
  std::uint64_t last_served_ = 0;
  std::map<std::uint64_t, watched> watched_;
  std::map<std::pair<time, std::uint64_t>, ferry::work*> timers_;
  std::map<std::uint64_t, time> timer_times_;
};

}  // namespace ferry::test_kit

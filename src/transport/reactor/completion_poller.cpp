#include "completion_poller.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include <pthread.h>
#include <sys/prctl.h>

#include "../../base/signal_mask.hpp"

namespace ferry::inline v0::detail {
namespace {

// A mark is reported late by at most an eighth of the time that it took, within these bounds.
constexpr std::chrono::microseconds shortest_poll{5};
constexpr std::chrono::microseconds longest_poll{500};
// Below this, a thread that sleeps is not worth waking for a new mark.
constexpr std::chrono::microseconds nap{20};

}  // namespace

completion_poller& completion_poller::of_process() {
  static auto* const instance = new completion_poller;  // its thread may still run while the process ends
  return *instance;
}

void completion_poller::add(const stream& on, event&& mark, std::shared_ptr<mark_waiter> waiter) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    if (!started_) start();
    fresh_.push_back({on, std::move(mark), std::move(waiter)});
    wake = std::exchange(sleeping_, false);
  }
  if (wake) news_.notify_one();
}

// With mutex_ held.
void completion_poller::start() {
  // After main() the driver is unloaded, and nothing is reported.
  std::atexit([] {
    completion_poller& self = of_process();
    const std::lock_guard lock(self.mutex_);
    self.stopped_ = true;
  });
  {
    const signals_blocked here;
    std::thread([this] { run(); }).detach();
  }
  started_ = true;
}

void completion_poller::run() {
  ::pthread_setname_np(::pthread_self(), "ferry-devices");
  ::prctl(PR_SET_TIMERSLACK, 1000UL);  // the usual slack is 50 us
  auto waiting_since = std::chrono::steady_clock::now();
  std::vector<entry> taken;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_news = [this] { return !fresh_.empty(); };
    if (lanes_.size() == 0) {
      sleeping_ = !has_news();
      news_.wait(lock, has_news);
    } else if (!has_news()) {
      const auto waited = std::chrono::steady_clock::now() - waiting_since;
      const auto pause = std::clamp<std::chrono::nanoseconds>(waited / 8, shortest_poll, longest_poll);
      sleeping_ = pause > nap;
      news_.wait_for(lock, pause, has_news);
    }
    sleeping_ = false;
    if (stopped_) return;
    taken.swap(fresh_);
    lock.unlock();
    bool progress = !taken.empty();
    for (entry& each : taken) {
      try {
        lanes_.add(each.on, std::move(each.mark), each.waiter);
      } catch (...) {  // no memory
        each.waiter->reached(std::current_exception());
      }
    }
    taken.clear();
    lanes_.collect([&](const std::shared_ptr<mark_waiter>& waiter, const std::exception_ptr& failure) {
      progress = true;
      waiter->reached(failure);
    });
    if (progress) waiting_since = std::chrono::steady_clock::now();
    lock.lock();
  }
}

}  // namespace ferry::inline v0::detail

// Time limits that are renewed, over timers that are over as soon as they start.

#include "transport/reactor/time_limit.hpp"

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "watchdog.hpp"

namespace time_limit_test {

using namespace std::chrono_literals;

// The first timer is over, and what it calls begins, before start_timer() has returned. The others wait.
class hasty_timers final : public ferry::reactor {
 public:
  ~hasty_timers() override {
    if (first_.joinable()) first_.join();
  }
  ferry::timer_id start_timer(ferry::deadline, ferry::work* item) override {
    std::unique_lock lock(mutex_);
    const auto number = ferry::timer_id{++started_};
    if (started_ != 1) {
      waiting_.emplace(number, item);
      next_.notify_all();
      return number;
    }
    first_ = std::thread([item] { item->run(item); });
    // As long as a thread may be held up here: what the first one calls starts the second one now, if it is let.
    next_.wait_for(lock, 100ms, [&] { return started_ == 2; });
    return number;
  }
  bool cancel_timer(ferry::timer_id timer) noexcept override {
    const std::lock_guard lock(mutex_);
    return waiting_.erase(timer) != 0;
  }
  void wait_for_first() { first_.join(); }
  [[nodiscard]] std::uint64_t started() const {
    const std::lock_guard lock(mutex_);
    return started_;
  }
  [[nodiscard]] std::size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  // Those that wait are over.
  void pass() {
    std::map<ferry::timer_id, ferry::work*> due;
    {
      const std::lock_guard lock(mutex_);
      due.swap(waiting_);
    }
    for (const auto& [number, item] : due) item->run(item);
  }

  ferry::watch_id watch(int, std::shared_ptr<ferry::descriptor_handler>, bool, bool) override { return {}; }
  void rewatch(ferry::watch_id, bool, bool) noexcept override {}
  void unwatch(ferry::watch_id) noexcept override {}
  void post(ferry::work* item) noexcept override { item->run(item); }

 private:
  mutable std::mutex mutex_;  // guards the next three
  std::condition_variable next_;
  std::uint64_t started_ = 0;
  std::map<ferry::timer_id, ferry::work*> waiting_;
  std::thread first_;
};

TEST_CASE("a time limit that is over before it is kept does not take the place of the one that it starts") {
  const ferry_test::watchdog limit_of_test("renewed time limits");
  const auto timers = std::make_shared<hasty_timers>();
  int called = 0;
  ferry::detail::renewed_time_limit limit;
  limit.start(timers, ferry::deadline::after(1ms),
              [&] { limit.start(timers, ferry::deadline::after(1ms), [&] { ++called; }); });
  timers->wait_for_first();
  CHECK(timers->started() == 2);
  CHECK(timers->waiting() == 1);
  timers->pass();
  CHECK(called == 1);
}

TEST_CASE("a renewed time limit is the last one that was started, and none after its end") {
  const auto timers = std::make_shared<hasty_timers>();
  int called = 0;
  ferry::detail::renewed_time_limit limit;
  limit.start(timers, ferry::deadline::after(1ms), [] {});
  timers->wait_for_first();
  limit.start(timers, ferry::deadline::after(1ms), [&] { called += 1; });
  limit.start(timers, ferry::deadline::after(1ms), [&] { called += 10; });
  timers->pass();
  CHECK(called == 10);
  limit.start(timers, ferry::deadline::after(1ms), [&] { called += 100; });
  limit.close();
  CHECK(timers->waiting() == 0);
  limit.start(timers, ferry::deadline::after(1ms), [&] { called += 1000; });
  CHECK(timers->started() == 4);
  timers->pass();
  CHECK(called == 10);
}

}  // namespace time_limit_test

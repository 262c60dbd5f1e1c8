// What the library's reactor does later: connections that it looks at again, and what its threads hold.

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

namespace monitor_test {

using namespace std::chrono_literals;

namespace {

constexpr std::chrono::seconds patience{60};

// Counts how often it is asked, and is done after the `wanted`-th time.
class asked_again final : public ferry::deferred_io {
 public:
  explicit asked_again(int wanted) : wanted_(wanted) {}

  void flush() noexcept override {}
  bool resume_watching(bool) noexcept override {
    const std::lock_guard lock(mutex_);
    last_ = ferry::clock::now();
    ++asked_;
    news_.notify_all();
    return asked_ >= wanted_;
  }
  bool wait() {
    std::unique_lock lock(mutex_);
    return news_.wait_for(lock, patience, [&] { return asked_ >= wanted_; });
  }
  int asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }
  ferry::clock::time_point last() {
    const std::lock_guard lock(mutex_);
    return last_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable news_;
  const int wanted_;
  int asked_ = 0;
  ferry::clock::time_point last_;
};

}  // namespace

TEST_CASE("the monitor asks again at the interval until the answer is yes, and keeps nothing then") {
  const auto loop = ferry::shared_reactor();
  const auto item = std::make_shared<asked_again>(5);
  const auto started = ferry::clock::now();
  loop->watch_later(item, 3ms);
  REQUIRE(item->wait());
  CHECK(item->last() - started >= 15ms);
  const auto until = ferry::clock::now() + patience;
  while (item.use_count() != 1 && ferry::clock::now() < until) std::this_thread::yield();
  CHECK(item.use_count() == 1);
  CHECK(item->asked() == 5);
}

TEST_CASE("a watch with a long interval delays none with a short one") {
  const auto loop = ferry::shared_reactor();
  const auto slow = std::make_shared<asked_again>(1);
  loop->watch_later(slow, 1h);
  // Each begins while the monitor sleeps for the long one, or is about to.
  for (int i = 0; i != 50; ++i) {
    const auto fast = std::make_shared<asked_again>(2);
    loop->watch_later(fast, 1ms);
    REQUIRE(fast->wait());
  }
  CHECK(slow->asked() == 0);
}

TEST_CASE("watches of several threads are all looked at") {
  const auto loop = ferry::shared_reactor();
  std::vector<std::thread> threads;
  for (int t = 0; t != 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i != 200; ++i) {
        const auto item = std::make_shared<asked_again>(1);
        loop->watch_later(item, std::chrono::milliseconds(t % 2 == 0 ? 1 : 6));
        CHECK(item->wait());
      }
    });
  }
  for (auto& each : threads) each.join();
}

}  // namespace monitor_test

#include "foreign_memory.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <thread>
#include <utility>

#include <pthread.h>

#include "../../base/signal_mask.hpp"

namespace ferry::inline v0::detail {
namespace {

// Releases owners when the devices are done with their memory. Looks at the marks instead of waiting_ for one: a device
// that does not get on holds nothing of another one.
class late_releases {
 public:
  struct entry {
    std::shared_ptr<const void> owner;
    std::vector<event> marks;
    std::vector<stream> captured;  // streams that use it, and were being captured: they have no marks yet
  };

  static late_releases& of_process() {
    static auto* const instance = new late_releases;  // its thread may still run while the process ends
    return *instance;
  }

  // Throws std::bad_alloc, std::system_error; `what` is unchanged then.
  void add(entry&& what) {
    {
      const std::lock_guard lock(mutex_);
      if (!started_) start();
      fresh_.push_back(std::move(what));
    }
    news_.notify_one();
  }

 private:
  static constexpr std::chrono::microseconds first_pause{100};
  static constexpr std::chrono::microseconds longest_pause{20'000};

  // With mutex_ held.
  void start() {
    // Owners may belong to static objects: after main() nothing is released.
    std::atexit([] { of_process().stop(); });
    {
      const signals_blocked here;
      std::thread([this] { run(); }).detach();
    }
    started_ = true;
  }

  void stop() noexcept {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  void run() {
    ::pthread_setname_np(::pthread_self(), "ferry-release");
    auto pause = first_pause;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        const auto has_news = [this] { return !fresh_.empty(); };
        if (waiting_.empty()) {
          news_.wait(lock, has_news);
        } else {
          news_.wait_for(lock, pause, has_news);
        }
        if (stopped_) return;
        pause = fresh_.empty() ? std::min(pause * 2, longest_pause) : first_pause;
        std::move(fresh_.begin(), fresh_.end(), std::back_inserter(waiting_));
        fresh_.clear();
      }
      std::erase_if(waiting_, [](entry& each) {
        mark_captured(each);
        std::erase_if(each.marks, &completed);
        return each.marks.empty() && each.captured.empty();
      });
    }
  }

  // A stream that is not captured any more gets its mark.
  static void mark_captured(entry& one) noexcept {
    std::erase_if(one.captured, [&](const stream& each) {
      try {
        if (each.capturing()) return false;
        one.marks.push_back(each.record());
      } catch (
          const std::exception&) {  // NOLINT(bugprone-empty-catch): a device that has failed does not use the memory
      }
      return true;
    });
  }

  static bool completed(const event& mark) noexcept {
    try {
      return mark.done();
    } catch (const std::exception&) {  // a device that has failed no longer uses the memory
      return true;
    }
  }

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<entry> fresh_;
  std::vector<entry> waiting_;  // only the thread accesses these
  bool started_ = false;
  bool stopped_ = false;
};

// True if the stream is done, or its device has failed.
bool idle(const stream& each) noexcept {
  try {
    return !each.capturing() && each.done();
  } catch (const std::exception&) {
    return true;
  }
}

void wait_for(const stream& each) noexcept {
  try {
    each.synchronize();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a device that has failed no longer uses the memory
  }
}

}  // namespace

foreign_memory::~foreign_memory() {
  std::erase_if(users_, &idle);
  if (users_.empty()) return;
  try {
    late_releases::entry later{owner_, {}, {}};
    for (const stream& each : users_) {
      if (each.capturing()) {
        later.captured.push_back(each);
      } else {
        later.marks.push_back(each.record());
      }
    }
    late_releases::of_process().add(std::move(later));
  } catch (const std::exception&) {  // no memory, no thread, or a failed device
    for (const stream& each : users_) wait_for(each);
  }
}

void foreign_memory::record_use(const stream& by) {
  if (by.device().is_cpu()) return;
  const std::lock_guard lock(mutex_);
  if (std::find(users_.begin(), users_.end(), by) == users_.end()) users_.push_back(by);
}

}  // namespace ferry::inline v0::detail

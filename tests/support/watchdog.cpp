#include "watchdog.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace ferry_test {

watchdog::watchdog(std::string what, std::chrono::seconds limit)
    : thread_([this, what = std::move(what), limit] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, limit, [&] { return done_; })) return;
        std::fprintf(stderr, "watchdog: %s took more than %lld s\n", what.c_str(),
                     static_cast<long long>(limit.count()));
        std::abort();
      }) {}

watchdog::~watchdog() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace ferry_test

#include "watchdog.hpp"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <sys/types.h>

namespace ferry_test {
namespace {

// A child that is left, perhaps a stopped one, would keep the test's output open, and its reader waiting.
void kill_children() {
  std::error_code gone;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task", gone)) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child = 0; children >> child;) ::kill(child, SIGKILL);
  }
}

}  // namespace

watchdog::watchdog(std::string what, std::chrono::seconds limit)
    : thread_([this, what = std::move(what), limit] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, limit, [&] { return done_; })) return;
        std::fprintf(stderr, "watchdog: %s took more than %lld s\n", what.c_str(),
                     static_cast<long long>(limit.count()));
        kill_children();
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

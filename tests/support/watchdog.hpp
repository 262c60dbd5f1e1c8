#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "sanitizers.hpp"

namespace ferry_test {

/// Ends the process with a message and the stacks of all other threads if it is not destroyed in time, so that a test that hangs says so.
/// Takes a thread.
class watchdog {
 public:
  static constexpr std::chrono::seconds usual_limit{sanitized ? 300 : 200};

  explicit watchdog(std::string what, std::chrono::seconds limit = usual_limit);
  ~watchdog();
  watchdog(const watchdog&) = delete;
  watchdog& operator=(const watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace ferry_test

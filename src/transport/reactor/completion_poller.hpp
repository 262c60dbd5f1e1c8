#pragma once

// The thread that asks devices whether they have reached marks.

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <ferry/device/stream.hpp>

#include "../../device/memory/completion_lanes.hpp"

namespace ferry::inline v0::detail {

/// What waits for marks. Called on the poller's thread, once for each mark; must not block.
class mark_waiter {
 public:
  /// `failure`: null, or that of the device, which will not reach the mark.
  virtual void reached(std::exception_ptr failure) noexcept = 0;

 protected:
  ~mark_waiter() = default;
};

/// One thread asks for all marks of the process: only the first one of each stream, often at first, and the less often the longer
/// it takes. docs/decisions/completion.md has the reasons. Thread-safe.
class completion_poller {
 public:
  static completion_poller& of_process();
  /// Throws std::bad_alloc, std::system_error; then the waiter is not called.
  void add(const stream& on, event&& mark, std::shared_ptr<mark_waiter> waiter);

 private:
  struct entry {
    stream on;
    event mark;
    std::shared_ptr<mark_waiter> waiter;
  };
  void start();
  void run();

  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<entry> fresh_;
  bool started_ = false;
  bool stopped_ = false;
  bool sleeping_ = false;                                 // for long enough to be woken
  completion_lanes<std::shared_ptr<mark_waiter>> lanes_;  // only the thread accesses these
};

}  // namespace ferry::inline v0::detail

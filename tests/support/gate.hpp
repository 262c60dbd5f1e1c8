#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <stdexcept>

namespace ferry_test {

/// Where handlers stop until the test lets them go on. Waits are bounded: a wait that is too long throws. Blocking here is
/// not a wait of the library, so a handler keeps its place. Thread-safe.
class gate {
 public:
  static constexpr std::chrono::seconds limit{60};

  gate() = default;
  gate(const gate&) = delete;
  gate& operator=(const gate&) = delete;
  /// Lets all handlers pass first: nothing tells the test that the handler of a one-way call has passed.
  ~gate() {
    std::unique_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
    leave_none(lock);
  }

  /// Counts an arrival and waits until the gate is open.
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    if (++inside_ > most_inside_) most_inside_ = inside_;
    changed_.notify_all();
    const bool opened = changed_.wait_for(lock, limit, [&] { return open_; });
    --inside_;
    changed_.notify_all();
    if (!opened) throw std::runtime_error("the gate was not opened in time");
  }
  void open() {
    std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  /// Counts an arrival without waiting.
  void arrive() {
    std::lock_guard lock(mutex_);
    ++arrived_;
    changed_.notify_all();
  }
  void await_arrivals(int count) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, limit, [&] { return arrived_ >= count; })) {
      throw std::runtime_error("too few arrived at the gate");
    }
  }
  [[nodiscard]] int arrived() const {
    std::lock_guard lock(mutex_);
    return arrived_;
  }
  /// The most that ever waited at once.
  [[nodiscard]] int most_inside() const {
    std::lock_guard lock(mutex_);
    return most_inside_;
  }
  /// As new, once those that it was opened for have left.
  void reset() {
    std::unique_lock lock(mutex_);
    if (open_) leave_none(lock);
    open_ = false;
    arrived_ = most_inside_ = 0;
  }

 private:
  void leave_none(std::unique_lock<std::mutex>& lock) {
    (void)changed_.wait_for(lock, limit, [&] { return inside_ == 0; });
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  int arrived_ = 0;
  int inside_ = 0;
  int most_inside_ = 0;
};

}  // namespace ferry_test

#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <ferry/base/time.hpp>

#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

/// Controls for one worker that it has not answered yet. They are sent in batches, one batch in flight at a time, and
/// stay queued until answered. Acknowledgements and deletions, which nothing waits for, are delayed briefly
/// (`batch_delay`) so that they can be batched. Not thread-safe.
class reference_outbox {
 public:
  static constexpr std::size_t most_at_once = 1024;
  static constexpr std::chrono::milliseconds first_pause{20};
  static constexpr std::chrono::milliseconds longest_pause{2000};

  /// A control waits this long for others to share its batch, unless there are `enough` of them.
  static constexpr std::chrono::milliseconds batch_delay{1};
  static constexpr std::size_t enough = 256;

  void add(const reference_control& control, clock::time_point now, bool at_once) {
    waiting_.push_back(control);
    const bool waits =
        control.what == reference_control::kind::child_accept || control.what == reference_control::kind::user_delete;
    if (at_once || !waits || size() >= enough) {
      flush();
    } else {
      send_at_ = std::min(send_at_, now + batch_delay);
    }
  }
  /// Makes all waiting controls due now.
  void flush() noexcept { send_at_ = {}; }
  [[nodiscard]] bool empty() const noexcept { return size() == 0 && !under_way_; }
  [[nodiscard]] std::size_t size() const noexcept { return waiting_.size() - first_; }
  /// Whether a batch should be sent now.
  [[nodiscard]] bool due(clock::time_point now) const noexcept { return waits() && due_at() <= now; }
  /// Whether a batch is to be sent, now or later, and when.
  [[nodiscard]] bool waits() const noexcept { return size() != 0 && !under_way_; }
  [[nodiscard]] clock::time_point due_at() const noexcept { return std::max(send_at_, retry_at_); }
  /// Puts the next batch to send into `batch`. Its controls stay queued until answered(). Strong guarantee.
  void begin(std::vector<reference_control>& batch) {
    const std::size_t count = std::min(size(), most_);
    const auto from = waiting_.begin() + static_cast<std::ptrdiff_t>(first_);
    batch.assign(from, from + static_cast<std::ptrdiff_t>(count));
    under_way_ = true;
    in_batch_ = count;
    send_at_ = in_batch_ == size() ? clock::time_point::max() : clock::time_point();
  }
  /// The pending question of agent::is_over: whether the peer's incarnation has ended.
  [[nodiscard]] std::uint64_t question() const noexcept { return question_; }
  void ask(std::uint64_t question) noexcept { question_ = question; }
  /// Consecutive failures.
  [[nodiscard]] int failures() const noexcept { return failures_; }
  void answered() {
    failures_ = 0;
    question_ = 0;
    remove_first(in_batch_);
    under_way_ = false;
    in_batch_ = 0;
    pause_ = first_pause;
    retry_at_ = {};
  }
  /// The batch is above a limit of the peer's: the next ones are half as long. False if it was one control, which failed() is for.
  bool shrink() noexcept {
    if (in_batch_ <= 1) return false;
    most_ = in_batch_ / 2;
    under_way_ = false;
    in_batch_ = 0;
    flush();
    return true;
  }
  void failed(clock::time_point now) {
    ++failures_;
    under_way_ = false;
    in_batch_ = 0;
    flush();
    retry_at_ = now + pause_;
    pause_ = std::min(pause_ * 2, longest_pause);
  }

 private:
  static constexpr std::size_t most_kept = 256;  // of the memory, in controls

  void remove_first(std::size_t count) noexcept {
    first_ += count;
    if (first_ == waiting_.size()) {
      waiting_.clear();
      first_ = 0;
      if (waiting_.capacity() > most_kept) std::vector<reference_control>().swap(waiting_);
    } else if (first_ > waiting_.size() / 2) {
      waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(first_));
      first_ = 0;
    }
  }

  std::vector<reference_control> waiting_;  // from first_ on
  std::size_t first_ = 0;
  std::size_t in_batch_ = 0;
  std::size_t most_ = most_at_once;
  bool under_way_ = false;
  int failures_ = 0;
  std::uint64_t question_ = 0;
  std::chrono::milliseconds pause_ = first_pause;
  clock::time_point send_at_ = clock::time_point::max();
  clock::time_point retry_at_{};
};

}  // namespace ferry::inline v0::detail

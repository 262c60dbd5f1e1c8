#pragma once

#include <chrono>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

/// Decides how long a thread spins for the next message of a connection before it sleeps: not at all until short waits
/// have been observed, and rarely once spinning has stopped paying off (both ends on one core, a slow peer, a busy
/// machine); or always, for busy polling. Used only by the thread that reads the connection; not thread-safe.
class adaptive_spin {
 public:
  explicit adaptive_spin(std::chrono::nanoseconds longest, bool always = false) noexcept
      : longest_(longest), always_(always) {}

  /// How long to spin now; zero for not at all.
  [[nodiscard]] std::chrono::nanoseconds budget() noexcept {
    if (longest_.count() == 0) return {};
    if (always_ || credit_ > 0) return longest_;
    if (++since_probe_ < probe_interval_) return {};
    since_probe_ = 0;
    return longest_;
  }
  /// The next budget() is one, unless spinning is switched off.
  void probe_now() noexcept { since_probe_ = probe_interval_; }
  /// Whether spinning has stopped paying off, or is switched off.
  [[nodiscard]] bool has_given_up() const noexcept {
    return longest_.count() == 0 || (!always_ && credit_ == 0 && probe_interval_ > first_probe_interval);
  }
  /// The message arrived while spinning.
  void succeeded() noexcept {
    credit_ = credit_ + 2 < most_credit ? credit_ + 2 : most_credit;
    probe_interval_ = first_probe_interval;
  }
  /// No message arrived while spinning.
  void failed() noexcept {
    if (credit_ > 0) {
      --credit_;
    } else if (probe_interval_ < last_probe_interval) {
      probe_interval_ *= 2;
    }
  }
  /// The thread slept and the message arrived after `waited`: a short wait makes the next probe come sooner.
  void slept(std::chrono::nanoseconds waited) noexcept {
    if (waited < 2 * longest_ && probe_interval_ == first_probe_interval) since_probe_ += 3;
  }

 private:
  static constexpr int most_credit = 16;
  static constexpr int first_probe_interval = 32;
  static constexpr int last_probe_interval = 4096;
  std::chrono::nanoseconds longest_;
  bool always_;
  int credit_ = 0;
  int since_probe_ = 0;
  int probe_interval_ = first_probe_interval;
};

}  // namespace ferry::inline v0::detail

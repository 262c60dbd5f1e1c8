#pragma once

// Waits on descriptors that another thread can interrupt.

#include <ferry/base/time.hpp>

#include "../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// Once raised, stays raised; ends every wait on it. Thread-safe.
class interrupt {
 public:
  /// Throws errc::system_failure.
  interrupt();
  void raise() noexcept;
  [[nodiscard]] bool raised() const noexcept;
  /// Becomes readable when raised.
  [[nodiscard]] int descriptor() const noexcept { return event_.get(); }

  enum class outcome { ready, expired, interrupted };
  /// Waits until `fd` (-1: none) has one of `events` (poll's), the deadline passes, or the interrupt is raised, which
  /// takes precedence.
  [[nodiscard]] outcome wait(int fd, short events, deadline until) const;
  /// Waits for `pause`, but not beyond `until`: expired, or interrupted.
  [[nodiscard]] outcome sleep(std::chrono::nanoseconds pause, deadline until) const;

 private:
  unique_fd event_;
};

/// min(a, now + pause)
deadline sooner(deadline a, std::chrono::nanoseconds pause);

}  // namespace ferry::inline v0::detail

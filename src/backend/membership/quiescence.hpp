#pragma once

// The wait of a worker that leaves, until its calls and handlers have ended.

#include <atomic>
#include <cstdint>
#include <functional>

#include <ferry/base/time.hpp>

#include "../lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// How far a shutdown that is not graceful interrupts one that is.
enum class leave_interrupt : int {
  none = 0,
  others = 1,  ///< do not wait for other workers
  all = 2,     ///< do not wait at all
};

/// Thread-safe.
class quiescence {
 public:
  enum class result { quiet, interrupted, too_late };

  /// Something that quiet() looks at may have changed. Cheap while no thread waits; may be called with locks of the rpc
  /// layer held.
  void changed() noexcept;
  /// Interrupts the waits of this level, those to come included; the strongest request stays.
  void interrupt(leave_interrupt level) noexcept;
  [[nodiscard]] bool interrupted(leave_interrupt level) const noexcept {
    return interrupt_.load() >= static_cast<int>(level);
  }
  /// Until `quiet` is true, which is called without a lock. Blocks.
  [[nodiscard]] result wait(deadline until, leave_interrupt level, const std::function<bool()>& quiet);

 private:
  std::atomic<int> waiters_{0};
  std::atomic<int> interrupt_{0};
  ranked_mutex mutex_{rank_of_quiescence};  // guards the next one
  std::uint64_t activity_ = 0;
  ranked_condition changed_;
};

}  // namespace ferry::inline v0::detail

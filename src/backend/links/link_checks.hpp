#pragma once

// Deferred checks of links: deadlines of calls, and connections that wait for capacity that other links may release.

#include <functional>
#include <memory>
#include <utility>

#include <ferry/base/time.hpp>
#include <ferry/transport/reactor.hpp>

#include "../kept_timer.hpp"
#include "../lock_ranks.hpp"
#include "link_table.hpp"

namespace ferry::inline v0::detail {

/// Thread-safe. A timer that is set keeps the owner alive.
class link_checks {
 public:
  /// `owner`: what these checks and the table are part of.
  link_checks(const link_table& links, std::shared_ptr<reactor> threads, std::function<std::shared_ptr<void>()> owner)
      : links_(links), threads_(std::move(threads)), owner_(std::move(owner)) {}
  link_checks(const link_checks&) = delete;
  link_checks& operator=(const link_checks&) = delete;

  /// The earliest deadline of a link's calls has become `at`.
  void check_deadlines_at(deadline at) noexcept;
  /// A link has begun to wait for others.
  void look_again_soon() noexcept;
  /// No timer is set any more.
  void stop() noexcept;

 private:
  void check_deadlines(const work* fired) noexcept;
  void look_again(const work* fired) noexcept;
  [[nodiscard]] std::shared_ptr<link_checks> kept() { return {owner_(), this}; }

  const link_table& links_;
  const std::shared_ptr<reactor> threads_;
  const std::function<std::shared_ptr<void>()> owner_;
  ranked_mutex mutex_{rank_of_timers};  // guards what follows
  bool stopped_ = false;
  deadline next_check_;
  kept_timer check_timer_;
  kept_timer look_timer_;
};

}  // namespace ferry::inline v0::detail

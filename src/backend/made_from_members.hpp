#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>

#include "lock_ranks.hpp"

namespace ferry::inline v0::detail {

/// A value that is made from the members of the group, anew once they have changed. Thread-safe.
template <class Value>
class made_from_members {
 public:
  /// use(value as of `changes`), with the mutex held; `make` makes the value. Throws what both throw.
  template <class Make, class Use>
  auto with(std::uint64_t changes, Make make, Use use) const {
    const std::lock_guard lock(mutex_);
    if (as_of_ != changes) {
      as_of_.reset();
      value_ = make();
      as_of_ = changes;
    }
    return use(std::as_const(value_));
  }

 private:
  mutable ranked_mutex mutex_{rank_of_caches};  // guards the next two
  mutable Value value_;
  mutable std::optional<std::uint64_t> as_of_;
};

}  // namespace ferry::inline v0::detail

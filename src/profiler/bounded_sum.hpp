#pragma once

#include <cstdint>
#include <limits>

namespace ferry::inline v0::detail {

/// Adds times of which peers have told some: what does not fit stays the largest, or least, value.
inline void add_bounded(std::int64_t& sum, std::int64_t more) noexcept {
  std::int64_t whole = 0;
  if (__builtin_add_overflow(sum, more, &whole))
    whole = more > 0 ? std::numeric_limits<std::int64_t>::max() : std::numeric_limits<std::int64_t>::min();
  sum = whole;
}

}  // namespace ferry::inline v0::detail

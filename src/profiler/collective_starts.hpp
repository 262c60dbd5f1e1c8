#pragma once

// When all members of each collective had called it.

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include <ferry/profiler/profile.hpp>

#include "waits.hpp"

namespace ferry::inline v0::detail {

/// As far as the profile has its members. A collective that only one of them tells of has none that it waits for.
class collective_starts {
 public:
  explicit collective_starts(const profiler::profile& from);
  /// When the last member called the collective that this is an event of; its beginning, if that is not known.
  [[nodiscard]] std::int64_t of(const profiler::event& which) const noexcept;
  /// By worker: for how long another one waited for it alone, of those of each collective the longest.
  [[nodiscard]] std::map<std::int32_t, std::int64_t> held_up(const wait_index& waits) const;

 private:
  struct start {
    const profiler::event* last = nullptr;
    std::int64_t before_ns = 0;  // when the last but one was called; without one the same
    std::vector<const profiler::event*> all;
  };
  std::unordered_map<std::uint64_t, start> starts_;  // by the number of the collective
};

}  // namespace ferry::inline v0::detail

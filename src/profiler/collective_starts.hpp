#pragma once

// When all members of each collective had called it.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// As far as the profile has its members. A collective that only one of them tells of has none that it waits for.
class collective_starts {
 public:
  explicit collective_starts(const profiler::profile& from);
  /// When the last member called the collective that this is an event of; its beginning, if that is not known.
  [[nodiscard]] std::int64_t of(const profiler::event& which) const noexcept;
  /// By worker: for how long others waited for it alone.
  [[nodiscard]] std::map<std::int32_t, std::int64_t> held_up() const;

 private:
  struct start {
    std::int64_t last_ns = 0;
    std::int64_t before_ns = 0;  // of the last but one; without one the same
    std::int32_t last = -1;
    std::size_t members = 1;  // that tell of it
  };
  std::unordered_map<std::uint64_t, start> starts_;  // by the number of the collective
};

/// What part of the event lies before that moment.
[[nodiscard]] std::int64_t time_until(const profiler::event& of, std::int64_t at_ns) noexcept;

}  // namespace ferry::inline v0::detail

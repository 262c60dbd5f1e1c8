#pragma once

// What is done beside the code that has begun it.

#include <cstdint>
#include <unordered_map>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0::detail {

/// Its thread does not wait while it is under way, or not for all of that time: others are, or it computes.
[[nodiscard]] inline bool is_asynchronous(const profiler::event& each) noexcept {
  return each.kind == range_kind::collective || (each.kind == range_kind::call && !each.name.starts_with("rpc_sync#"));
}

/// For which event each one is done: its parent, but for what has outlived that, and for what a thread does while it waits.
class event_owners {
 public:
  explicit event_owners(const profiler::profile& from);
  /// Its number; 0: none.
  [[nodiscard]] std::uint64_t of(const profiler::event& which) const;

 private:
  std::unordered_map<std::uint64_t, const profiler::event*> by_number_;
};

}  // namespace ferry::inline v0::detail

#include "collective_starts.hpp"

#include <algorithm>

#include "bounded_sum.hpp"

namespace ferry::inline v0::detail {

collective_starts::collective_starts(const profiler::profile& from) {
  for (const profiler::event& each : from.events) {
    if (each.kind != range_kind::collective || each.call == 0) continue;
    const auto [found, first] =
        starts_.try_emplace(each.call, start{.last_ns = each.began_ns, .before_ns = each.began_ns, .last = each.node});
    if (first) continue;
    start& known = found->second;
    if (each.began_ns >= known.last_ns) {
      known.before_ns = known.last_ns;
      known.last_ns = each.began_ns;
      known.last = each.node;
    } else {
      known.before_ns = known.members == 1 ? each.began_ns : std::max(known.before_ns, each.began_ns);
    }
    ++known.members;
  }
}

std::int64_t collective_starts::of(const profiler::event& which) const noexcept {
  const auto found = starts_.find(which.call);
  return found == starts_.end() ? which.began_ns : found->second.last_ns;
}

std::map<std::int32_t, std::int64_t> collective_starts::held_up() const {
  std::map<std::int32_t, std::int64_t> found;
  for (const auto& [number, each] : starts_) {
    std::int64_t late = each.last_ns;
    add_bounded(late, -each.before_ns);
    add_bounded(found[each.last], late);
  }
  return found;
}

std::int64_t time_until(const profiler::event& of, std::int64_t at_ns) noexcept {
  return std::clamp(at_ns, of.began_ns, of.ended_ns) - of.began_ns;
}

}  // namespace ferry::inline v0::detail

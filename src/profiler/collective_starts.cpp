#include "collective_starts.hpp"

#include <algorithm>
#include <limits>

#include "bounded_sum.hpp"

namespace ferry::inline v0::detail {
namespace {

// For how long the code of a member waited between two moments for a collective to end.
std::int64_t waited_between(const profiler::event& of, std::int64_t from, std::int64_t to, const wait_index& waits) {
  const hold how = waits.hold_of(of);
  if (how == hold::none) return 0;
  const profiler::event& in = how == hold::awaited ? *waits.wait_of(of) : of;
  const std::int64_t began = std::max({in.began_ns, of.began_ns, from});
  const std::int64_t ended = std::min({in.ended_ns, of.ended_ns, to});
  std::int64_t length = 0;
  if (__builtin_sub_overflow(ended, began, &length))
    return ended > began ? std::numeric_limits<std::int64_t>::max() : 0;
  return std::max<std::int64_t>(length, 0);
}

}  // namespace

collective_starts::collective_starts(const profiler::profile& from) {
  for (const profiler::event& each : from.events) {
    if (each.kind != range_kind::collective || each.call == 0) continue;
    start& known = starts_[each.call];
    known.all.push_back(&each);
    if (!known.last) {
      known.last = &each;
      known.before_ns = each.began_ns;
    } else if (each.began_ns >= known.last->began_ns) {
      known.before_ns = known.last->began_ns;
      known.last = &each;
    } else {
      known.before_ns = known.all.size() == 2 ? each.began_ns : std::max(known.before_ns, each.began_ns);
    }
  }
}

std::int64_t collective_starts::of(const profiler::event& which) const noexcept {
  const auto found = starts_.find(which.call);
  return found == starts_.end() ? which.began_ns : found->second.last->began_ns;
}

std::map<std::int32_t, std::int64_t> collective_starts::held_up(const wait_index& waits) const {
  std::map<std::int32_t, std::int64_t> found;
  for (const auto& [number, each] : starts_) {
    const bool failed =
        std::any_of(each.all.begin(), each.all.end(), [](const profiler::event* one) { return one->failed; });
    if (failed || each.all.size() == 1) continue;
    std::int64_t longest = 0;
    for (const profiler::event* one : each.all) {
      if (one->node == each.last->node) continue;
      longest = std::max(longest, waited_between(*one, each.before_ns, each.last->began_ns, waits));
    }
    add_bounded(found[each.last->node], longest);
  }
  return found;
}

}  // namespace ferry::inline v0::detail

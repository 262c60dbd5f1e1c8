#include "asynchronous.hpp"

namespace ferry::inline v0::detail {
namespace {
// Parents in a circle, which a peer can send, end, too.
constexpr int most_generations = 64;
}  // namespace

event_owners::event_owners(const profiler::profile& from) {
  for (const profiler::event& each : from.events) by_number_.emplace(each.number, &each);
}

std::uint64_t event_owners::of(const profiler::event& which) const {
  std::uint64_t owner = which.parent;
  for (int i = 0; i != most_generations; ++i) {
    const auto found = by_number_.find(owner);
    if (found == by_number_.end()) return owner;
    const profiler::event& around = *found->second;
    const bool outlived =
        is_asynchronous(which) && around.ended_ns < which.ended_ns && around.node == which.node && around.parent != 0;
    if (around.kind != range_kind::wait && !outlived) return owner;
    owner = around.parent;
  }
  return owner;
}

}  // namespace ferry::inline v0::detail

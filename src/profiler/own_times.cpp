#include "own_times.hpp"

#include <algorithm>

namespace ferry::inline v0::detail {

std::int64_t covered(std::vector<time_interval> all) {
  std::sort(all.begin(), all.end(), [](const time_interval& a, const time_interval& b) { return a.from < b.from; });
  std::int64_t sum = 0;
  std::int64_t until = 0;
  bool any = false;
  for (const time_interval& each : all) {
    const std::int64_t from = any ? std::max(each.from, until) : each.from;
    if (each.to > from) {
      sum += each.to - from;
      until = each.to;
      any = true;
    }
  }
  return sum;
}

std::unordered_map<std::uint64_t, std::int64_t> own_times(const profiler::profile& from, const wait_index& waits) {
  std::unordered_map<std::uint64_t, const profiler::event*> by_number;
  for (const profiler::event& each : from.events) by_number.emplace(each.number, &each);
  std::unordered_map<std::uint64_t, std::vector<time_interval>> within;
  for (const profiler::event& each : from.events) {
    const auto parent = by_number.find(each.parent);
    if (parent == by_number.end() || parent->second->node != each.node) continue;
    const hold how = waits.hold_of(each);
    if (how == hold::awaited || how == hold::none) continue;  // the wait for it is a child, too
    const profiler::event& around = *parent->second;
    const time_interval part{std::max(each.began_ns, around.began_ns), std::min(each.ended_ns, around.ended_ns)};
    if (part.to > part.from) within[around.number].push_back(part);
  }
  std::unordered_map<std::uint64_t, std::int64_t> own;
  for (const profiler::event& each : from.events) {
    const auto parts = within.find(each.number);
    own[each.number] = each.duration_ns() - (parts == within.end() ? 0 : covered(parts->second));
  }
  return own;
}

}  // namespace ferry::inline v0::detail

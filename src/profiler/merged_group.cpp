#include <ferry/profiler/process_scope.hpp>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "bounded_sum.hpp"
#include "linked_calls.hpp"
#include "profile_batch.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

profiler::clock_offset clock_of(std::int32_t node, const std::vector<profiler::clock_offset>& clocks) {
  const auto found = std::find_if(clocks.begin(), clocks.end(),
                                  [node](const profiler::clock_offset& each) { return each.node == node; });
  if (found == clocks.end()) {
    throw_error(
        errc::invalid_argument,
        fmt::format("merged_group() has a profile of worker {}, and is not told how its clock differs from that "
                    "of the first profile's worker",
                    node));
  }
  if (found->offset_ns < -longest_profile_time || found->offset_ns > longest_profile_time ||
      found->uncertainty_ns < 0 || found->uncertainty_ns > longest_profile_time) {
    throw_error(errc::invalid_argument,
                fmt::format("merged_group() is told that the clock of worker {} differs by {} ns, within {} ns", node,
                            found->offset_ns, found->uncertainty_ns));
  }
  return *found;
}

void append_moved(profiler::profile& to, profiler::profile&& from, const profiler::clock_offset& clock,
                  std::uint64_t& next) {
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t number = next;
  for (const profiler::event& each : from.events) numbers.emplace(each.number, number++);
  for (profiler::event& each : from.events) {
    each.number = next++;
    const auto parent = numbers.find(each.parent);
    each.parent = parent == numbers.end() ? 0 : parent->second;
    add_bounded(each.began_ns, -clock.offset_ns);
    add_bounded(each.ended_ns, -clock.offset_ns);
    add_bounded(each.uncertainty_ns, clock.uncertainty_ns);
    to.events.push_back(std::move(each));
  }
  add_bounded(from.began_ns, -clock.offset_ns);
  add_bounded(from.ended_ns, -clock.offset_ns);
  to.began_ns = std::min(to.began_ns, from.began_ns);
  to.ended_ns = std::max(to.ended_ns, from.ended_ns);
  to.lost += from.lost;
  to.unfinished += from.unfinished;
  if (to.workers.size() < from.workers.size()) to.workers.resize(from.workers.size());
  for (std::size_t i = 0; i != from.workers.size(); ++i) {
    if (to.workers[i].empty()) to.workers[i] = std::move(from.workers[i]);
  }
}

}  // namespace
}  // namespace detail

namespace profiler {

profile merged_group(std::vector<profile> of_each_worker, const std::vector<clock_offset>& clocks) {
  profile all;
  if (of_each_worker.empty()) return all;
  all.node = of_each_worker.front().node;
  all.began_ns = of_each_worker.front().began_ns;
  all.ended_ns = of_each_worker.front().ended_ns;
  std::unordered_set<std::int32_t> nodes;
  std::uint64_t next = 1;
  for (profile& each : of_each_worker) {
    if (!nodes.insert(each.node).second)
      throw_error(errc::invalid_argument, fmt::format("merged_group() has two profiles of worker {}", each.node));
    const bool first = each.node == all.node;
    const clock_offset clock = first ? clock_offset{.node = each.node} : detail::clock_of(each.node, clocks);
    if (!first) all.clocks.push_back(clock);
    detail::append_moved(all, std::move(each), clock, next);
  }
  // Clocks of workers without a profile, as the first one has seen them.
  for (const clock_offset& each : of_each_worker.front().clocks) {
    if (!nodes.contains(each.node)) all.clocks.push_back(each);
  }
  std::sort(all.clocks.begin(), all.clocks.end(),
            [](const clock_offset& a, const clock_offset& b) { return a.node < b.node; });
  std::sort(all.events.begin(), all.events.end(), [](const event& a, const event& b) {
    return a.began_ns != b.began_ns ? a.began_ns < b.began_ns : a.number < b.number;
  });
  detail::link_calls(all);
  return all;
}

}  // namespace profiler
}  // namespace ferry::inline v0

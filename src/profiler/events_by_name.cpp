#include "events_by_name.hpp"

#include <algorithm>
#include <map>

#include "bounded_sum.hpp"
#include "own_times.hpp"

namespace ferry::inline v0::detail {

std::vector<named_events> events_by_name(const profiler::profile& from) {
  const auto own = own_times(from, wait_index(from));
  std::map<std::string_view, named_events> by_name;
  for (const profiler::event& each : from.events) {
    named_events& to = by_name[each.name];
    to.name = each.name;
    ++to.count;
    to.failed += each.failed ? 1 : 0;
    add_bounded(to.total_ns, each.duration_ns());
    add_bounded(to.own_ns, own.at(each.number));
    to.longest_ns = std::max(to.longest_ns, each.duration_ns());
    if (each.device_time) add_bounded(to.on_device_ns, each.device_time->count());
    if (each.device) to.devices.insert(*each.device);
  }
  std::vector<named_events> sorted;
  for (const auto& [name, each] : by_name) sorted.push_back(each);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const named_events& a, const named_events& b) { return a.total_ns > b.total_ns; });
  return sorted;
}

}  // namespace ferry::inline v0::detail

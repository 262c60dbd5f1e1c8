#include <ferry/profiler/report.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "bounded_sum.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0::profiler {

const event* profile::find(std::string_view name) const noexcept {
  const auto found = std::find_if(events.begin(), events.end(), [&](const event& each) { return each.name == name; });
  return found == events.end() ? nullptr : &*found;
}

std::size_t profile::count(std::string_view name) const noexcept {
  return static_cast<std::size_t>(
      std::count_if(events.begin(), events.end(), [&](const event& each) { return each.name == name; }));
}

const event* profile::find(std::uint64_t number) const noexcept {
  const auto found =
      std::find_if(events.begin(), events.end(), [&](const event& each) { return each.number == number; });
  return found == events.end() ? nullptr : &*found;
}

std::vector<const event*> profile::children(const event& of) const {
  std::vector<const event*> found;
  for (const event& each : events) {
    if (each.parent == of.number) found.push_back(&each);
  }
  return found;
}

}  // namespace ferry::inline v0::profiler

namespace ferry::inline v0 {
namespace detail {
namespace {

struct time_interval {
  std::int64_t from;
  std::int64_t to;
};

// The length of what intervals cover together.
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

// The time of each event without that of its children at the same worker.
std::unordered_map<std::uint64_t, std::int64_t> own_times(const profiler::profile& from) {
  std::unordered_map<std::uint64_t, const profiler::event*> by_number;
  for (const profiler::event& each : from.events) by_number.emplace(each.number, &each);
  std::unordered_map<std::uint64_t, std::vector<time_interval>> within;
  for (const profiler::event& each : from.events) {
    const auto parent = by_number.find(each.parent);
    if (parent == by_number.end() || parent->second->node != each.node) continue;
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

std::string_view name_of_time(profiler::path_time what) noexcept {
  switch (what) {
    case profiler::path_time::compute: return "compute";
    case profiler::path_time::communication: return "communicate";
    case profiler::path_time::queueing: return "queue";
    case profiler::path_time::waiting: return "wait";
  }
  return "";
}

std::string in_microseconds(std::int64_t ns) { return fmt::format("{:.1f}", static_cast<double>(ns) / 1000); }

// The critical path of an event, by worker, kind of time and name.
std::string path_table(const profiler::profile& from, const profiler::event& of, std::size_t rows) {
  struct row {
    std::int64_t total = 0;
    std::uint64_t steps = 0;
  };
  std::unordered_map<std::uint64_t, std::string_view> names;
  for (const profiler::event& each : from.events) names.emplace(each.number, each.name);
  std::map<std::tuple<std::int32_t, profiler::path_time, std::string_view>, row> found;
  for (const profiler::path_step& each : profiler::critical_path(from, of.number)) {
    row& to = found[{each.node, each.what, names.at(each.event)}];
    to.total += each.duration_ns();
    ++to.steps;
  }
  std::vector<std::pair<std::tuple<std::int32_t, profiler::path_time, std::string_view>, row>> sorted(found.begin(),
                                                                                                      found.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.total > b.second.total; });
  std::string text = fmt::format("\nthe critical path of {}, {} us:\n{:>14}{:>8}{:>8}  {:<12}{:<24}{}\n", of.name,
                                 in_microseconds(of.duration_ns()), "us", "share", "steps", "", "worker", "event");
  for (std::size_t i = 0; i != std::min(rows, sorted.size()); ++i) {
    const auto& [what, each] = sorted[i];
    const auto& [node, time, name] = what;
    text += fmt::format("{:>14}{:>7.1f}%{:>8}  {:<12}{:<24}{}\n", in_microseconds(each.total),
                        100 * static_cast<double>(each.total) / static_cast<double>(of.duration_ns()), each.steps,
                        name_of_time(time), worker_name(from, node), name);
  }
  if (sorted.size() > rows) text += fmt::format("and {} more\n", sorted.size() - rows);
  return text;
}

}  // namespace
}  // namespace detail

namespace profiler {

summary summarise(const profile& from) {
  summary all;
  all.length_ns = from.ended_ns - from.began_ns;
  const auto own = detail::own_times(from);
  std::unordered_map<std::uint64_t, const event*> handlers;  // by their calls
  for (const event& each : from.events) {
    if (each.kind == range_kind::handler) handlers.emplace(each.parent, &each);
  }
  std::map<std::int32_t, worker_share> shares;
  std::map<std::int32_t, std::vector<detail::time_interval>> busy;
  for (const event& each : from.events) {
    worker_share& share = shares[each.node];
    share.node = each.node;
    ++share.events;
    busy[each.node].push_back({std::max(each.began_ns, from.began_ns), std::min(each.ended_ns, from.ended_ns)});
    detail::add_bounded(share.queueing_ns, each.queued_ns);
    if (each.kind == range_kind::wait) {
      detail::add_bounded(share.waiting_ns, own.at(each.number));
      continue;
    }
    if (each.kind != range_kind::call) {
      detail::add_bounded(share.compute_ns, own.at(each.number));
      continue;
    }
    const auto handler = handlers.find(each.number);
    const std::int64_t there =
        handler == handlers.end() ? 0 : handler->second->duration_ns() + handler->second->queued_ns;
    const std::int64_t waited = std::min(there, each.duration_ns());
    detail::add_bounded(share.waiting_ns, waited);
    detail::add_bounded(share.communication_ns, each.duration_ns() - waited);
  }
  std::int64_t longest = 0;
  for (auto& [node, share] : shares) {
    share.idle_ns = std::max<std::int64_t>(0, all.length_ns - detail::covered(std::move(busy[node])));
    if (share.compute_ns > longest) {
      longest = share.compute_ns;
      all.straggler = node;
    }
    all.workers.push_back(share);
  }
  return all;
}

std::string table(const profile& from, std::size_t rows) {
  const summary all = summarise(from);
  std::string text = fmt::format("{} us in all; {} events lost, {} unfinished\n\n",
                                 detail::in_microseconds(all.length_ns), from.lost, from.unfinished);
  text += fmt::format("{:<24}{:>12}{:>16}{:>12}{:>12}{:>12}{:>10}{:>16}\n", "worker", "compute us", "communicate us",
                      "wait us", "queue us", "idle us", "events", "clock within us");
  for (const worker_share& each : all.workers) {
    const auto clock = std::find_if(from.clocks.begin(), from.clocks.end(),
                                    [&](const clock_offset& one) { return one.node == each.node; });
    text += fmt::format("{:<24}{:>12}{:>16}{:>12}{:>12}{:>12}{:>10}{:>16}\n",
                        detail::worker_name(from, each.node) + (each.node == all.straggler ? " (longest)" : ""),
                        detail::in_microseconds(each.compute_ns), detail::in_microseconds(each.communication_ns),
                        detail::in_microseconds(each.waiting_ns), detail::in_microseconds(each.queueing_ns),
                        detail::in_microseconds(each.idle_ns), each.events,
                        clock == from.clocks.end() ? "" : detail::in_microseconds(clock->uncertainty_ns));
  }
  struct row {
    std::string_view name;
    std::uint64_t count = 0;
    std::uint64_t failed = 0;
    std::int64_t total = 0;
    std::int64_t own = 0;
    std::int64_t longest = 0;
    std::int64_t on_device = 0;
    std::set<device> devices = {};
  };
  const auto own = detail::own_times(from);
  std::map<std::string_view, row> by_name;
  for (const event& each : from.events) {
    row& to = by_name[each.name];
    to.name = each.name;
    ++to.count;
    to.failed += each.failed ? 1 : 0;
    detail::add_bounded(to.total, each.duration_ns());
    detail::add_bounded(to.own, own.at(each.number));
    to.longest = std::max(to.longest, each.duration_ns());
    if (each.device_time) detail::add_bounded(to.on_device, each.device_time->count());
    if (each.device) to.devices.insert(*each.device);
  }
  std::vector<row> sorted;
  for (const auto& [name, each] : by_name) sorted.push_back(each);
  std::stable_sort(sorted.begin(), sorted.end(), [](const row& a, const row& b) { return a.total > b.total; });
  const bool devices = std::any_of(sorted.begin(), sorted.end(), [](const row& each) { return !each.devices.empty(); });
  const auto device_columns = [devices](std::string_view time, std::string_view name) {
    return devices ? fmt::format("{:>14}  {:<10}", time, name) : std::string();
  };
  const auto devices_of = [](const row& each) {
    if (each.devices.empty()) return std::string();
    return to_string(*each.devices.begin()) + (each.devices.size() > 1 ? ", ..." : "");
  };
  text += fmt::format("\n{:>8}{:>8}{:>14}{:>14}{:>14}{}  {}\n", "count", "failed", "total us", "own us", "longest us",
                      device_columns("device us", "device"), "event");
  for (std::size_t i = 0; i != std::min(rows, sorted.size()); ++i) {
    const row& each = sorted[i];
    text += fmt::format(
        "{:>8}{:>8}{:>14}{:>14}{:>14}{}  {}\n", each.count, each.failed, detail::in_microseconds(each.total),
        detail::in_microseconds(each.own), detail::in_microseconds(each.longest),
        device_columns(each.devices.empty() ? "" : detail::in_microseconds(each.on_device), devices_of(each)),
        each.name);
  }
  if (sorted.size() > rows) text += fmt::format("and {} more\n", sorted.size() - rows);
  if (const event* longest = longest_event(from)) text += detail::path_table(from, *longest, rows);
  return text;
}

}  // namespace profiler
}  // namespace ferry::inline v0

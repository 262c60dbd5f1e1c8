#include <ferry/profiler/report.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "../base/printable.hpp"
#include "asynchronous.hpp"
#include "bounded_sum.hpp"
#include "collective_starts.hpp"
#include "events_by_name.hpp"
#include "own_times.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

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
  std::string text =
      fmt::format("\nthe critical path of {}, {} us:\n{:>14}{:>8}{:>8}  {:<12}{:<24}{}\n", printable(of.name),
                  in_microseconds(of.duration_ns()), "us", "share", "steps", "", "worker", "event");
  for (std::size_t i = 0; i != std::min(rows, sorted.size()); ++i) {
    const auto& [what, each] = sorted[i];
    const auto& [node, time, name] = what;
    text += fmt::format("{:>14}{:>7.1f}%{:>8}  {:<12}{:<24}{}\n", in_microseconds(each.total),
                        100 * static_cast<double>(each.total) / static_cast<double>(of.duration_ns()), each.steps,
                        name_of_time(time), printable(worker_name(from, node)), printable(name));
  }
  if (sorted.size() > rows) text += fmt::format("and {} more\n", sorted.size() - rows);
  return text;
}

// What part of the asynchronous calls, and of the waits, within an event was time in which nothing else of that event was done at the
// worker. A wait counts for what no call accounts for.
class waited_part {
 public:
  explicit waited_part(const profiler::profile& from) : owners_(from) {
    for (const profiler::event& each : from.events) {
      siblings& all = within_[key_of(each)];
      const time_interval time{each.began_ns, each.ended_ns};
      (is_asynchronous(each) ? all.calls : each.kind == range_kind::wait ? all.waits : all.others).push_back(time);
    }
    for (auto& [key, all] : within_) {
      all.of_calls = take_part(all.calls, all.others);
      all.of_waits = take_part(all.waits, all.others);
    }
  }
  [[nodiscard]] double of(const profiler::event& each) const {
    const bool waits = each.kind == range_kind::wait;
    if (!waits && !is_asynchronous(each)) return 1;
    const siblings& all = within_.at(key_of(each));
    return waits ? all.of_waits : all.of_calls;
  }

 private:
  struct siblings {
    std::vector<time_interval> calls;
    std::vector<time_interval> waits;
    std::vector<time_interval> others;
    double of_calls = 0;
    double of_waits = 0;
  };
  [[nodiscard]] std::pair<std::int32_t, std::uint64_t> key_of(const profiler::event& each) const {
    return {each.node, owners_.of(each)};
  }
  // Of the time of `all` what is not that of `others`, to which it adds them.
  static double take_part(const std::vector<time_interval>& all, std::vector<time_interval>& others) {
    if (all.empty()) return 0;
    double sum = 0;
    for (const time_interval& each : all) sum += static_cast<double>(each.to - each.from);
    const std::int64_t busy = covered(others);
    others.insert(others.end(), all.begin(), all.end());
    return sum > 0 ? static_cast<double>(covered(others) - busy) / sum : 0;
  }

  event_owners owners_;
  std::map<std::pair<std::int32_t, std::uint64_t>, siblings> within_;
};

}  // namespace
}  // namespace detail

namespace profiler {

summary summarise(const profile& from) {
  summary all;
  all.length_ns = from.ended_ns - from.began_ns;
  const auto own = detail::own_times(from);
  const detail::waited_part parts(from);
  const detail::collective_starts all_called(from);
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
    const auto part = [of = parts.of(each)](std::int64_t ns) {
      return of == 1 ? ns : static_cast<std::int64_t>(of * static_cast<double>(ns));
    };
    if (each.kind == range_kind::wait) {
      detail::add_bounded(share.waiting_ns, part(each.duration_ns()));
      continue;
    }
    if (each.kind != range_kind::call && each.kind != range_kind::collective) {
      detail::add_bounded(share.compute_ns, own.at(each.number));
      continue;
    }
    std::int64_t waited = 0;
    if (each.kind == range_kind::collective) {
      waited = detail::time_until(each, all_called.of(each));
    } else if (const auto handler = handlers.find(each.number); handler != handlers.end()) {
      waited = std::min(handler->second->duration_ns() + handler->second->queued_ns, each.duration_ns());
    }
    detail::add_bounded(share.waiting_ns, part(waited));
    detail::add_bounded(share.communication_ns, part(each.duration_ns() - waited));
  }
  for (const auto& [node, ns] : all_called.held_up()) detail::add_bounded(shares[node].held_up_ns, ns);
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
  const bool held_up = std::any_of(all.workers.begin(), all.workers.end(),
                                   [](const worker_share& each) { return each.held_up_ns != 0; });
  const auto held_up_column = [held_up](std::string_view time) {
    return held_up ? fmt::format("{:>18}", time) : std::string();
  };
  std::string text = fmt::format("{} us in all; {} events lost, {} unfinished\n\n",
                                 detail::in_microseconds(all.length_ns), from.lost, from.unfinished);
  text +=
      fmt::format("{:<24}{:>12}{:>16}{:>12}{:>12}{:>12}{}{:>10}{:>16}\n", "worker", "compute us", "communicate us",
                  "wait us", "queue us", "idle us", held_up_column("held up others us"), "events", "clock within us");
  for (const worker_share& each : all.workers) {
    const auto clock = std::find_if(from.clocks.begin(), from.clocks.end(),
                                    [&](const clock_offset& one) { return one.node == each.node; });
    text += fmt::format(
        "{:<24}{:>12}{:>16}{:>12}{:>12}{:>12}{}{:>10}{:>16}\n",
        detail::printable(detail::worker_name(from, each.node)) + (each.node == all.straggler ? " (longest)" : ""),
        detail::in_microseconds(each.compute_ns), detail::in_microseconds(each.communication_ns),
        detail::in_microseconds(each.waiting_ns), detail::in_microseconds(each.queueing_ns),
        detail::in_microseconds(each.idle_ns), held_up_column(detail::in_microseconds(each.held_up_ns)), each.events,
        clock == from.clocks.end() ? "" : detail::in_microseconds(clock->uncertainty_ns));
  }
  const std::vector<detail::named_events> sorted = detail::events_by_name(from);
  const bool devices =
      std::any_of(sorted.begin(), sorted.end(), [](const detail::named_events& each) { return !each.devices.empty(); });
  const auto device_columns = [devices](std::string_view time, std::string_view name) {
    return devices ? fmt::format("{:>14}  {:<10}", time, name) : std::string();
  };
  const auto devices_of = [](const detail::named_events& each) {
    if (each.devices.empty()) return std::string();
    return to_string(*each.devices.begin()) + (each.devices.size() > 1 ? ", ..." : "");
  };
  text += fmt::format("\n{:>8}{:>8}{:>14}{:>14}{:>14}{}  {}\n", "count", "failed", "total us", "own us", "longest us",
                      device_columns("device us", "device"), "event");
  for (std::size_t i = 0; i != std::min(rows, sorted.size()); ++i) {
    const detail::named_events& each = sorted[i];
    text += fmt::format(
        "{:>8}{:>8}{:>14}{:>14}{:>14}{}  {}\n", each.count, each.failed, detail::in_microseconds(each.total_ns),
        detail::in_microseconds(each.own_ns), detail::in_microseconds(each.longest_ns),
        device_columns(each.devices.empty() ? "" : detail::in_microseconds(each.on_device_ns), devices_of(each)),
        detail::printable(each.name));
  }
  if (sorted.size() > rows) text += fmt::format("and {} more\n", sorted.size() - rows);
  if (const event* longest = longest_event(from)) text += detail::path_table(from, *longest, rows);
  return text;
}

}  // namespace profiler
}  // namespace ferry::inline v0

#include <ferry/profiler/report.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "../base/printable.hpp"
#include "bounded_sum.hpp"
#include "collective_starts.hpp"
#include "events_by_name.hpp"
#include "own_times.hpp"
#include "waits.hpp"
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

// Of a time: members of a collective had not called it, or a handler ran; and it was under way.
struct split_time {
  std::int64_t waiting = 0;
  std::int64_t communication = 0;
};

// Where the time of calls, collectives and waits went.
class time_of_waits {
 public:
  time_of_waits(const profiler::profile& from, const wait_index& waits, const collective_starts& all_called)
      : waits_(waits), all_called_(all_called) {
    for (const profiler::event& each : from.events) {
      if (each.kind == range_kind::handler) handlers_.emplace(each.parent, &each);
    }
    for (const profiler::event& each : from.events) {
      const hold how = waits.hold_of(each);
      if (how == hold::awaited) ended_in_[waits.wait_of(each)].push_back(&each);
      siblings& all = within_[{each.node, waits.owner_of(each)}];
      const time_interval time{each.began_ns, each.ended_ns};
      if (how == hold::whole) all.others.push_back(time);
      if (how == hold::suspend) all.calls.push_back(time);
    }
    for (auto& [key, all] : within_) {
      if (all.calls.empty()) continue;
      double sum = 0;
      for (const time_interval& each : all.calls) sum += length_of(each);
      const std::int64_t busy = covered(all.others);
      all.others.insert(all.others.end(), all.calls.begin(), all.calls.end());
      if (sum > 0) all.part = static_cast<double>(covered(std::move(all.others)) - busy) / sum;
    }
  }

  // Of a call or a collective itself: what no wait of a thread accounts for.
  [[nodiscard]] split_time of(const profiler::event& each) const {
    const hold how = waits_.hold_of(each);
    if (how == hold::awaited || how == hold::none) return {};
    split_time whole = split(each, each.began_ns, each.ended_ns);
    if (how == hold::whole) return whole;
    const double part = within_.at({each.node, waits_.owner_of(each)}).part;
    return {scaled(whole.waiting, part), scaled(whole.communication, part)};
  }

  // Of a wait, of which `own` is not work that its thread has done meanwhile: that of the calls and collectives that ended in it, and
  // what these do not account for.
  [[nodiscard]] split_time of_wait(const profiler::event& wait, std::int64_t own) const {
    const auto found = ended_in_.find(&wait);
    if (found == ended_in_.end()) return {own, 0};
    std::vector<time_interval> parts;
    split_time sum;
    for (const profiler::event* each : found->second) {
      const time_interval time{std::max(each->began_ns, wait.began_ns), each->ended_ns};
      const split_time one = split(*each, time.from, time.to);
      add_bounded(sum.waiting, one.waiting);
      add_bounded(sum.communication, one.communication);
      parts.push_back(time);
    }
    const double all = static_cast<double>(sum.waiting) + static_cast<double>(sum.communication);
    if (all <= 0 || wait.duration_ns() <= 0) return {own, 0};
    const double explained = static_cast<double>(covered(std::move(parts))) / static_cast<double>(wait.duration_ns());
    const double under_way = explained * static_cast<double>(sum.communication) / all;
    const std::int64_t communication = scaled(own, under_way);
    return {own - communication, communication};
  }

 private:
  struct siblings {
    std::vector<time_interval> calls;
    std::vector<time_interval> others;
    double part = 0;  // of the calls' time: nothing else was done for the same event
  };
  static double length_of(const time_interval& each) noexcept { return static_cast<double>(each.to - each.from); }
  static std::int64_t scaled(std::int64_t ns, double by) noexcept {
    return static_cast<std::int64_t>(by * static_cast<double>(ns));
  }
  // Of a part of it. When the handler of a call ran is known by another clock only: its share is that of the whole call.
  [[nodiscard]] split_time split(const profiler::event& each, std::int64_t from, std::int64_t to) const {
    if (to <= from) return {};
    if (each.kind == range_kind::collective) {
      const std::int64_t all_called = std::clamp(all_called_.of(each), from, to);
      return {all_called - from, to - all_called};
    }
    const auto handler = handlers_.find(each.number);
    if (handler == handlers_.end() || each.duration_ns() <= 0) return {0, to - from};
    const std::int64_t there =
        std::min(handler->second->duration_ns() + handler->second->queued_ns, each.duration_ns());
    if (to - from == each.duration_ns()) return {there, to - from - there};
    const std::int64_t waiting =
        scaled(to - from, static_cast<double>(there) / static_cast<double>(each.duration_ns()));
    return {waiting, to - from - waiting};
  }

  const wait_index& waits_;
  const collective_starts& all_called_;
  std::unordered_map<std::uint64_t, const profiler::event*> handlers_;  // by their calls
  std::unordered_map<const profiler::event*, std::vector<const profiler::event*>> ended_in_;
  std::map<std::pair<std::int32_t, std::uint64_t>, siblings> within_;
};

}  // namespace
}  // namespace detail

namespace profiler {

summary summarise(const profile& from) {
  summary all;
  all.length_ns = from.ended_ns - from.began_ns;
  const detail::wait_index waits(from);
  const auto own = detail::own_times(from, waits);
  const detail::collective_starts all_called(from);
  const detail::time_of_waits times(from, waits, all_called);
  std::map<std::int32_t, worker_share> shares;
  std::map<std::int32_t, std::vector<detail::time_interval>> busy;
  for (const event& each : from.events) {
    worker_share& share = shares[each.node];
    share.node = each.node;
    ++share.events;
    busy[each.node].push_back({std::max(each.began_ns, from.began_ns), std::min(each.ended_ns, from.ended_ns)});
    detail::add_bounded(share.queueing_ns, each.queued_ns);
    const bool waits_itself = each.kind == range_kind::wait;
    if (!waits_itself && each.kind != range_kind::call && each.kind != range_kind::collective) {
      detail::add_bounded(share.compute_ns, own.at(each.number));
      continue;
    }
    const detail::split_time spent = waits_itself ? times.of_wait(each, own.at(each.number)) : times.of(each);
    detail::add_bounded(share.waiting_ns, spent.waiting);
    detail::add_bounded(share.communication_ns, spent.communication);
  }
  for (const auto& [node, ns] : all_called.held_up(waits)) detail::add_bounded(shares[node].held_up_ns, ns);
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

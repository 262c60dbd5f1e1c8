#include <ferry/profiler/html_page.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <ferry/profiler/report.hpp>

#include "bounded_sum.hpp"
#include "certain_clocks.hpp"
#include "events_by_name.hpp"
#include "html_text.hpp"
#include "html_timeline.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Colours by their names in the page's style.
constexpr std::string_view page_style = R"(
:root { color-scheme: light dark; --text: #1b1f24; --soft: #667; --page: #fff; --line: #d5d9df; --track: #f4f6f8;
  --compute: #3b7dd8; --communication: #e08a2e; --waiting: #b9a7d9; --queueing: #d4566a; --idle: #e3e6ea;
  --range: #4a9c6d; --operation: #3b7dd8; --autograd: #2a9d9d; --call: #e08a2e; --handler: #7a62b8; --wait: #b9a7d9; --collective: #c9711f; --failed: #c0262d; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #9aa3ad; --page: #15181c; --line: #343a42; --track: #1c2026;
  --idle: #2b3036; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 90rem; padding: 1.2rem; font: 14px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; } h2 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .bad { color: var(--failed); }
table { border-collapse: collapse; } th, td { padding: .15rem .7rem .15rem 0; text-align: right; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums; } th { font-weight: 600; color: var(--soft); } .name { text-align: left; overflow-wrap: anywhere; }
.key { display: inline-block; width: .8em; height: .8em; margin: 0 .35em 0 1em; border-radius: 2px; vertical-align: -1px; }
.scroll { overflow-x: auto; border: 1px solid var(--line); } .scroll svg.timeline { display: block; min-width: 100%; }
.timeline text { font-size: 11px; fill: #fff; } .timeline .label { fill: var(--text); font-weight: 600; } .timeline .tick { fill: var(--soft); }
.timeline .grid { stroke: var(--line); stroke-width: 1; } .timeline .band { fill: var(--track); } .timeline .arrow { stroke: var(--soft); stroke-width: 1; }
.bar.failed rect { stroke: var(--failed); stroke-width: 2; }
)";

// Magnifies the timeline; its positions are shares of its width.
constexpr std::string_view page_script = R"(
const zoom = document.getElementById("zoom"), timeline = document.getElementById("timeline"), box = timeline.parentNode;
document.getElementById("controls").hidden = false;
function magnify(times, at) {
  times = Math.min(Math.max(times, 1), 512);
  const before = timeline.clientWidth, place = box.scrollLeft + at;
  timeline.style.width = times * 100 + "%";
  box.scrollLeft = place * timeline.clientWidth / before - at;
  zoom.value = Math.log2(times);
}
zoom.oninput = () => magnify(2 ** zoom.value, box.clientWidth / 2);
box.addEventListener("wheel", turn => {
  if (turn.ctrlKey) { turn.preventDefault(); magnify(2 ** zoom.value * (2 ** (-turn.deltaY / 200)), turn.clientX - box.getBoundingClientRect().left); }
}, { passive: false });
)";

std::string_view colour_of(profiler::path_time what) noexcept {
  switch (what) {
    case profiler::path_time::compute: return "compute";
    case profiler::path_time::communication: return "communication";
    case profiler::path_time::queueing: return "queueing";
    case profiler::path_time::waiting: return "waiting";
  }
  return "compute";
}

class page_writer {
 public:
  page_writer(const profiler::profile& from, const profiler::page_options& how) : from_(from), how_(how) {}

  std::string write() {
    text_ = R"(<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8" />
<meta name="viewport" content="width=device-width, initial-scale=1" /><title>)";
    append_html(text_, how_.title);
    text_ += "</title><style>";
    text_ += page_style;
    text_ += "</style></head><body>\n";
    write_head();
    write_shares();
    write_path();
    append_timeline(text_, from_, how_.events);
    write_errors();
    write_names();
    write_clocks();
    text_ += "<script>//<![CDATA[\n";
    text_ += page_script;
    text_ += "//]]></script>\n</body></html>\n";
    return std::move(text_);
  }

 private:
  void words(std::string_view text) { append_html(text_, text); }
  void cell(std::string_view text, bool name = false) {
    text_ += name ? R"(<td class="name">)" : "<td>";
    words(text);
    text_ += "</td>";
  }
  void columns(const std::vector<std::string_view>& names) {
    text_ += "<table><tr>";
    for (const std::string_view& each : names) {
      const bool of_words = &each == names.data() || each == "what" || each == "worker" || each == "error";
      text_ += of_words ? R"(<th class="name">)" : "<th>";
      words(each);
      text_ += "</th>";
    }
    text_ += "</tr>\n";
  }
  void key(std::string_view colour) { append_key(text_, colour); }

  void write_head() {
    text_ += "<h1>";
    words(how_.title);
    text_ += "</h1><p>";
    words(fmt::format("{} on the clock of {}, {} events of {} workers.", duration_text(from_.ended_ns - from_.began_ns),
                      worker_name(from_, from_.node), from_.events.size(), workers()));
    text_ += "</p>";
    if (from_.lost != 0 || from_.unfinished != 0) {
      text_ += R"(<p class="bad">)";
      words(fmt::format("Not everything is here: {} events lost, {} unfinished.", from_.lost, from_.unfinished));
      text_ += "</p>";
    }
    text_ += "\n";
  }
  [[nodiscard]] std::size_t workers() const {
    std::map<std::int32_t, bool> seen;
    for (const profiler::event& each : from_.events) seen[each.node] = true;
    return seen.size();
  }

  // How much of the profile's time each worker spent with what.
  void write_shares() {
    const profiler::summary all = profiler::summarise(from_);
    text_ += "<h2>Where the time of each worker went</h2>\n<p>";
    for (const std::string_view each : {"compute", "communication", "waiting", "queueing", "idle"}) key(each);
    text_ += "</p>\n";
    const bool held_up = std::any_of(all.workers.begin(), all.workers.end(),
                                     [](const profiler::worker_share& each) { return each.held_up_ns != 0; });
    std::vector<std::string_view> names{"worker", "", "compute", "communication", "waiting", "queueing", "idle"};
    if (held_up) names.push_back("held up others");
    names.push_back("events");
    columns(names);
    for (const profiler::worker_share& each : all.workers) {
      const std::array<std::pair<std::string_view, std::int64_t>, 5> parts{{{"compute", each.compute_ns},
                                                                            {"communication", each.communication_ns},
                                                                            {"waiting", each.waiting_ns},
                                                                            {"queueing", each.queueing_ns},
                                                                            {"idle", each.idle_ns}}};
      std::int64_t sum = 0;  // of all threads: more than the profile's length where several ran at once
      for (const auto& [name, ns] : parts) add_bounded(sum, std::max<std::int64_t>(ns, 0));
      const auto share = [&](std::int64_t ns) {
        return sum == 0 ? 0 : 100 * static_cast<double>(std::max<std::int64_t>(ns, 0)) / static_cast<double>(sum);
      };
      text_ += "<tr>";
      cell(worker_name(from_, each.node) + (each.node == all.straggler ? " (computed longest)" : ""), true);
      text_ += R"(<td><svg width="260" height="14" role="img">)";
      double left = 0;
      for (const auto& [name, ns] : parts) {
        text_ += fmt::format(
            R"--(<rect x="{:.3f}%" width="{:.3f}%" height="14" style="fill:var(--{})"><title>{} {:.1f} %</title></rect>)--",
            left, share(ns), name, name, share(ns));
        left += share(ns);
      }
      text_ += "</svg></td>";
      for (const auto& [name, ns] : parts) cell(fmt::format("{} ({:.0f} %)", duration_text(ns), share(ns)));
      if (held_up) cell(duration_text(each.held_up_ns));
      cell(fmt::format("{}", each.events));
      text_ += "</tr>\n";
    }
    text_ += "</table>\n";
  }

  // What the longest event took its time for.
  void write_path() {
    const profiler::event* longest = profiler::longest_event(from_);
    if (!longest) return;
    const std::vector<profiler::path_step> path = profiler::critical_path(from_, longest->number);
    std::map<std::pair<std::int32_t, profiler::path_time>, std::int64_t> sums;
    for (const profiler::path_step& each : path) sums[{each.node, each.what}] += each.duration_ns();
    std::vector<std::pair<std::int64_t, std::pair<std::int32_t, profiler::path_time>>> sorted;
    for (const auto& [what, ns] : sums) sorted.emplace_back(ns, what);
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    text_ += "<h2>What the longest event took its time for</h2>\n<p>";
    words(fmt::format("{}, {} at {}.", longest->name, duration_text(longest->duration_ns()),
                      worker_name(from_, longest->node)));
    text_ += "</p>\n";
    columns({"worker", "what", "time", "share"});
    for (const auto& [ns, what] : sorted) {
      text_ += "<tr>";
      cell(worker_name(from_, what.first), true);
      text_ += R"(<td class="name">)";
      key(colour_of(what.second));
      text_ += "</td>";
      cell(duration_text(ns));
      cell(fmt::format("{:.1f} %", 100 * static_cast<double>(ns) /
                                       static_cast<double>(std::max<std::int64_t>(longest->duration_ns(), 1))));
      text_ += "</tr>\n";
    }
    text_ += "</table>\n";
  }

  void write_errors() {
    constexpr std::size_t most = 20;
    std::vector<const profiler::event*> failed;
    for (const profiler::event& each : from_.events) {
      if (each.failed) failed.push_back(&each);
    }
    if (failed.empty()) return;
    text_ += "<h2>Errors</h2>\n";
    columns({"event", "worker", "at", "error"});
    for (std::size_t i = 0; i != std::min(most, failed.size()); ++i) {
      text_ += "<tr>";
      cell(failed[i]->name, true);
      cell(worker_name(from_, failed[i]->node), true);
      cell(duration_text(failed[i]->ended_ns - from_.began_ns));
      cell(failed[i]->error, true);
      text_ += "</tr>\n";
    }
    text_ += "</table>\n";
    if (failed.size() > most) text_ += fmt::format("<p>and {} more</p>\n", failed.size() - most);
  }

  void write_names() {
    const std::vector<named_events> sorted = events_by_name(from_);
    text_ += "<h2>Events by name</h2>\n";
    columns({"event", "count", "failed", "total", "mean", "longest"});
    for (std::size_t i = 0; i != std::min(how_.rows, sorted.size()); ++i) {
      const named_events& each = sorted[i];
      text_ += "<tr>";
      cell(each.name, true);
      cell(fmt::format("{}", each.count));
      cell(fmt::format("{}", each.failed));
      cell(duration_text(each.total_ns));
      cell(duration_text(each.total_ns / static_cast<std::int64_t>(each.count)));
      cell(duration_text(each.longest_ns));
      text_ += "</tr>\n";
    }
    text_ += "</table>\n";
    if (sorted.size() > how_.rows) text_ += fmt::format("<p>and {} more</p>\n", sorted.size() - how_.rows);
  }

  void write_clocks() {
    if (from_.clocks.empty()) return;
    text_ += "<h2>Clocks</h2>\n";
    columns({"worker", "ahead", "known within", "calls looked at"});
    for (const profiler::clock_offset& each : from_.clocks) {
      text_ += "<tr>";
      cell(worker_name(from_, each.node), true);
      cell(duration_text(each.offset_ns));
      cell(duration_text(each.uncertainty_ns));
      cell(fmt::format("{}", each.calls));
      text_ += "</tr>\n";
    }
    text_ += "</table>\n";
  }

  const profiler::profile& from_;
  const profiler::page_options& how_;
  std::string text_;
};

}  // namespace
}  // namespace detail

namespace profiler {

std::string html_page(const profile& from, const page_options& how) {
  detail::require_certain_clocks(from, how.largest_uncertainty, "page_options");
  return detail::page_writer(from, how).write();
}

}  // namespace profiler
}  // namespace ferry::inline v0

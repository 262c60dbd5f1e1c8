#include "html_timeline.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "html_text.hpp"
#include "kind_name.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr int lane_height = 18;
constexpr int label_height = 20;
constexpr int axis_height = 22;
constexpr std::size_t most_lanes = 24;  // of a track; what overlaps more than that is left out

// What is drawn of one thread: the events that began on it, in lanes in which none overlaps another one. An event lies below those
// that are around it.
struct track {
  std::int32_t node = -1;
  std::uint32_t thread = 0;
  std::vector<std::pair<const profiler::event*, std::size_t>> drawn;  // with their lanes
  std::size_t lanes = 0;
  int top = 0;
};

class timeline_writer {
 public:
  timeline_writer(std::string& to, const profiler::profile& from, std::size_t most)
      : text_(to), from_(from), most_(most) {
    began_ns_ = from.began_ns;
    ended_ns_ = std::max(from.ended_ns, from.began_ns + 1);
    for (const profiler::event& each : from.events) {  // those of servers may lie around the time of the profile
      began_ns_ = std::min(began_ns_, each.began_ns);
      ended_ns_ = std::max(ended_ns_, each.ended_ns);
    }
  }

  void write() {
    std::vector<track> all = tracks();
    int height = axis_height;
    std::size_t drawn = 0;
    for (track& each : all) {
      each.top = height;
      height += label_height + static_cast<int>(each.lanes) * lane_height + 6;
      drawn += each.drawn.size();
    }
    text_ += "<h2>Timeline</h2>\n<p>";
    for (const range_kind each : {range_kind::user, range_kind::operation, range_kind::autograd, range_kind::call,
                                  range_kind::handler, range_kind::collective, range_kind::wait}) {
      append_key(text_, kind_name(each));
    }
    append_key(text_, "failed");
    text_ += "</p>\n";
    if (drawn != from_.events.size()) {
      text_ += R"(<p class="soft">)";
      words(
          fmt::format("{} of {} events are drawn: the longest ones, and where many run at once those that began first.",
                      drawn, from_.events.size()));
      text_ += "</p>";
    }
    text_ +=
        R"(<p id="controls" hidden="hidden"><label>Zoom <input id="zoom" type="range" min="0" max="9" step="0.1" value="0" />)";
    text_ += R"(</label> <span class="soft">also: Ctrl and the wheel</span></p>)";
    text_ += fmt::format(
        R"(<div class="scroll"><svg id="timeline" class="timeline" xmlns="http://www.w3.org/2000/svg" width="100%" height="{}">)",
        height);
    text_ += "\n";
    write_axis(height);
    for (const track& each : all) write_track(each);
    write_arrows(all);
    text_ += "</svg></div>\n";
  }

 private:
  void words(std::string_view text) { append_html(text_, text); }
  [[nodiscard]] double percent(std::int64_t at_ns) const noexcept {
    return 100 * static_cast<double>(at_ns - began_ns_) / static_cast<double>(ended_ns_ - began_ns_);
  }

  // The longest events, in lanes.
  [[nodiscard]] std::vector<track> tracks() {
    std::vector<const profiler::event*> chosen;
    for (const profiler::event& each : from_.events) chosen.push_back(&each);
    if (chosen.size() > most_) {
      std::stable_sort(chosen.begin(), chosen.end(), [](const profiler::event* a, const profiler::event* b) {
        return a->duration_ns() > b->duration_ns();
      });
      chosen.resize(most_);
    }
    std::stable_sort(chosen.begin(), chosen.end(), [](const profiler::event* a, const profiler::event* b) {
      return a->began_ns != b->began_ns ? a->began_ns < b->began_ns : a->ended_ns > b->ended_ns;
    });
    std::map<std::pair<std::int32_t, std::uint32_t>, track> found;
    std::map<std::pair<std::int32_t, std::uint32_t>, std::vector<std::int64_t>> ends;  // of each lane
    for (const profiler::event* each : chosen) {
      const std::pair at{each->node, each->thread_of_begin()};
      track& to = found[at];
      to.node = each->node;
      to.thread = each->thread_of_begin();
      std::vector<std::int64_t>& until = ends[at];
      std::size_t lane = until.size();  // below the last lane in which something still runs
      while (lane != 0 && until[lane - 1] <= each->began_ns) --lane;
      if (lane == most_lanes) continue;
      if (lane == until.size()) until.push_back(0);
      until[lane] = each->ended_ns;
      to.lanes = std::max(to.lanes, lane + 1);
      to.drawn.emplace_back(each, lane);
    }
    std::vector<track> all;
    for (auto& [at, each] : found) all.push_back(std::move(each));
    return all;
  }

  void write_axis(int height) {
    constexpr int parts = 10;
    for (int i = 0; i != parts; ++i) {
      const double at = 100.0 * i / parts;
      const std::int64_t ns = (ended_ns_ - began_ns_) / parts * i + began_ns_ - from_.began_ns;
      text_ += fmt::format(R"(<line class="grid" x1="{0:.2f}%" x2="{0:.2f}%" y1="0" y2="{1}" />)", at, height);
      text_ += fmt::format(R"(<text class="tick" x="{:.2f}%" y="14" dx="3">{}</text>)", at, duration_text(ns));
      text_ += "\n";
    }
  }

  void write_track(const track& of) {
    text_ += fmt::format(R"(<rect class="band" x="0" width="100%" y="{}" height="{}" />)", of.top + label_height - 1,
                         of.lanes * lane_height + 2);
    text_ += fmt::format(R"(<text class="label" x="4" y="{}">)", of.top + 14);
    words(fmt::format("{}, thread {}", worker_name(from_, of.node), of.thread));
    text_ += "</text>\n";
    for (const auto& [each, lane] : of.drawn) {
      const double left = percent(each->began_ns);
      const double width = std::max(percent(each->ended_ns) - left, 0.0);
      const int top = top_of(of, lane);
      text_ += fmt::format(R"(<g class="bar{}"><title>)", each->failed ? " failed" : "");
      words(description(*each));
      text_ += fmt::format(
          R"--(</title><rect x="{0:.4f}%" width="{1:.4f}%" y="{2}" height="{3}" style="fill:var(--{4});width:max({1:.4f}%,1px)" />)--",
          left, width, top, lane_height - 2, kind_name(each->kind));
      // Cuts the name off at the end of the bar.
      text_ += fmt::format(R"(<svg x="{:.4f}%" width="{:.4f}%" y="{}" height="{}"><text x="3" y="12">)", left, width,
                           top, lane_height - 2);
      words(last_part(each->name));
      text_ += "</text></svg></g>\n";
    }
  }
  static int top_of(const track& of, std::size_t lane) {
    return of.top + label_height + static_cast<int>(lane) * lane_height;
  }
  // Of an event of a callee, without the names of the calls that it came through.
  static std::string_view last_part(std::string_view name) {
    constexpr std::string_view separator = "#remote_op: ";
    const std::size_t at = name.rfind(separator);
    return at == std::string_view::npos ? name : name.substr(at + separator.size());
  }
  [[nodiscard]] std::string description(const profiler::event& of) const {
    std::string text = fmt::format("{}\n{} from {}", of.name, duration_text(of.duration_ns()),
                                   duration_text(of.began_ns - from_.began_ns));
    if (of.kind == range_kind::handler) text += fmt::format("\nqueued {}", duration_text(of.queued_ns));
    if (of.remote || of.uncertainty_ns != 0) text += fmt::format("\nclock within {}", duration_text(of.uncertainty_ns));
    if (!of.shapes.empty()) text += "\nshapes " + of.shapes;
    if (of.bytes >= 0) text += fmt::format("\n{} bytes", of.bytes);
    if (of.device_time) text += fmt::format("\n{} on the device", duration_text(of.device_time->count()));
    if (of.failed) text += "\nfailed: " + of.error;
    return text;
  }

  // From calls to their handlers, and back.
  void write_arrows(const std::vector<track>& all) {
    struct place {
      const profiler::event* of;
      int y;
    };
    std::unordered_map<std::uint64_t, place> places;  // by number
    for (const track& each : all) {
      for (const auto& [drawn, lane] : each.drawn) places.emplace(drawn->number, place{drawn, top_of(each, lane)});
    }
    for (const auto& [number, handler] : places) {
      if (handler.of->kind != range_kind::handler) continue;
      const auto call = places.find(handler.of->parent);
      if (call == places.end() || call->second.of->kind != range_kind::call) continue;
      const bool below = handler.y > call->second.y;
      const int from = call->second.y + (below ? lane_height - 2 : 0);
      const int to = handler.y + (below ? 0 : lane_height - 2);
      const auto line = [&](std::int64_t a, int y1, std::int64_t b, int y2) {
        text_ += fmt::format(R"(<line class="arrow" x1="{:.4f}%" y1="{}" x2="{:.4f}%" y2="{}" />)", percent(a), y1,
                             percent(b), y2);
        text_ += "\n";
      };
      line(call->second.of->began_ns, from, handler.of->began_ns, to);
      line(handler.of->ended_ns, to, call->second.of->ended_ns, from);
    }
  }

  std::string& text_;
  const profiler::profile& from_;
  std::size_t most_;
  std::int64_t began_ns_ = 0;
  std::int64_t ended_ns_ = 1;
};

}  // namespace

void append_key(std::string& to, std::string_view colour) {
  to += fmt::format(R"--(<span class="key" style="background:var(--{0})"></span>{0})--", colour);
}

void append_timeline(std::string& to, const profiler::profile& from, std::size_t most) {
  timeline_writer(to, from, most).write();
}

}  // namespace ferry::inline v0::detail

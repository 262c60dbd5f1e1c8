#include <ferry/profiler/report.hpp>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>

#include "../rpc/diagnostics/json_text.hpp"
#include "bounded_sum.hpp"
#include "certain_clocks.hpp"
#include "kind_name.hpp"
#include "worker_name.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

enum class trace_key : std::uint8_t {
  number,
  parent,
  worker,
  queued_ns,
  uncertainty_ns,
  shapes,
  bytes,
  failed,
  error,
  device,
  device_ns
};

constexpr std::string_view text_type = "string";
constexpr std::string_view number_type = "integer";
// Larger than the numbers that the system gives to threads.
constexpr std::uint32_t first_device_track = 1U << 30U;

// In the order of trace_key.
const std::vector<profiler::metadata_key>& keys_of_traces() {
  static const std::vector<profiler::metadata_key> all{
      {"number", number_type, "of the event in the profile"},
      {"parent", number_type, "the number of the event that it is part of; 0: none"},
      {"worker", number_type, "the id of the worker where it ran"},
      {"queued_ns", number_type, "handlers: from the arrival of the request until it began"},
      {"uncertainty_ns", number_type, "how far off its times may be, because the clock is another worker's"},
      {"shapes", text_type, "of the tensors that an operation took"},
      {"bytes", number_type, "of the tensors that an operation made"},
      {"failed", number_type, "1: it ended with an error"},
      {"error", text_type, "what it ended with"},
      {"device", text_type, "that an operation queued work on"},
      {"device_ns", number_type, "how long that work took there"},
  };
  return all;
}

std::string_view name_of_key(trace_key key) { return keys_of_traces()[static_cast<std::size_t>(key)].name; }

class trace_writer {
 public:
  explicit trace_writer(const profiler::profile& from) : from_(from) {}

  std::string write() {
    find_nested();
    text_ = "{\"displayTimeUnit\":\"ns\",\"otherData\":{";
    text_ += fmt::format("\"lost\":{},\"unfinished\":{},\"clocks\":[", from_.lost, from_.unfinished);
    bool first = true;
    for (const profiler::clock_offset& each : from_.clocks) {
      separate(first);
      text_ += fmt::format("{{\"worker\":{},\"offset_ns\":{},\"uncertainty_ns\":{},\"calls\":{}}}", each.node,
                           each.offset_ns, each.uncertainty_ns, each.calls);
    }
    text_ += "],\"keys\":[";
    first = true;
    for (const profiler::metadata_key& each : keys_of_traces()) {
      separate(first);
      text_ += fmt::format("{{\"name\":\"{}\",\"type\":\"{}\",\"meaning\":{}}}", each.name, each.type,
                           json_text(each.meaning));
    }
    text_ += "]},\"traceEvents\":[\n";
    write_tracks();
    for (const profiler::event& each : from_.events) write_event(each);
    write_device_work();
    write_arrows();
    text_ += "\n]}\n";
    return std::move(text_);
  }

 private:
  void separate(bool& first) {
    if (!std::exchange(first, false)) text_ += ',';
  }
  void begin_object() {
    if (!std::exchange(first_event_, false)) text_ += ",\n";
  }
  [[nodiscard]] double microseconds(std::int64_t at_ns) const noexcept {
    return static_cast<double>(at_ns - from_.began_ns) / 1000;
  }

  // Slices of a track lie within each other or apart. An event that overlaps another one (calls of one thread that wait at the same
  // time), or that ends on another thread, has a track of its own.
  void find_nested() {
    std::map<std::pair<std::int32_t, std::uint32_t>, std::vector<const profiler::event*>> tracks;
    for (const profiler::event& each : from_.events) {
      if (each.thread_of_begin() == each.thread) tracks[{each.node, each.thread}].push_back(&each);
    }
    for (auto& [key, track] : tracks) {
      std::sort(track.begin(), track.end(), [](const profiler::event* a, const profiler::event* b) {
        if (a->began_ns != b->began_ns) return a->began_ns < b->began_ns;
        return a->ended_ns != b->ended_ns ? a->ended_ns > b->ended_ns : a->number < b->number;
      });
      std::vector<std::int64_t> around;
      for (const profiler::event* each : track) {
        while (!around.empty() && around.back() <= each->began_ns) around.pop_back();
        const bool nested = around.empty() || each->ended_ns <= around.back();
        if (nested) nested_.insert(each->number);
        if (nested) around.push_back(each->ended_ns);
      }
    }
  }

  void write_tracks() {
    std::map<std::int32_t, std::map<std::uint32_t, bool>> tracks;
    for (const profiler::event& each : from_.events) {
      tracks[each.node][each.thread] = true;
      tracks[each.node][each.thread_of_begin()] = true;
    }
    for (const auto& [node, threads] : tracks) {
      begin_object();
      text_ += fmt::format(R"({{"ph":"M","name":"process_name","pid":{},"tid":0,"args":{{"name":{}}}}})", node,
                           json_text(worker_name(from_, node)));
      for (const auto& [thread, present] : threads) {
        begin_object();
        text_ += fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"thread {}"}}}})",
                             node, thread, thread);
      }
    }
  }

  // Where the work of operations ran, a track for each device. How long it took there is known, and that it began after the operation
  // did: it is put there, or behind the work before it.
  void write_device_work() {
    struct track {
      std::uint32_t number;
      std::int64_t free_from_ns;
    };
    std::map<std::pair<std::int32_t, device>, track> tracks;
    for (const profiler::event& each : from_.events) {
      if (!each.device || !each.device_time) continue;
      const auto next = static_cast<std::uint32_t>(first_device_track + tracks.size());
      const auto [found, fresh] = tracks.try_emplace({each.node, *each.device}, track{next, each.began_ns});
      track& on = found->second;
      if (fresh) {
        begin_object();
        text_ += fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", each.node,
                             on.number, json_text(to_string(*each.device)));
      }
      const std::int64_t began_ns = std::max(each.began_ns, on.free_from_ns);
      const std::int64_t length_ns = each.device_time->count();
      on.free_from_ns = began_ns;
      add_bounded(on.free_from_ns, length_ns);
      begin_object();
      text_ += fmt::format(R"({{"ph":"X","name":{},"cat":"device","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)",
                           json_text(each.name), each.node, on.number, microseconds(began_ns),
                           static_cast<double>(length_ns) / 1000);
      write_arguments(each);
      text_ += '}';
    }
  }

  void write_arguments(const profiler::event& event) {
    text_ += fmt::format(R"("args":{{"{}":{},"{}":{},"{}":{})", name_of_key(trace_key::number), event.number,
                         name_of_key(trace_key::parent), event.parent, name_of_key(trace_key::worker), event.node);
    const auto number = [&](trace_key key, std::int64_t value) {
      text_ += fmt::format(R"(,"{}":{})", name_of_key(key), value);
    };
    const auto words = [&](trace_key key, const std::string& value) {
      text_ += fmt::format(R"(,"{}":{})", name_of_key(key), json_text(value));
    };
    if (event.kind == range_kind::handler) number(trace_key::queued_ns, event.queued_ns);
    if (event.remote || event.uncertainty_ns != 0) number(trace_key::uncertainty_ns, event.uncertainty_ns);
    if (!event.shapes.empty()) words(trace_key::shapes, event.shapes);
    if (event.bytes >= 0) number(trace_key::bytes, event.bytes);
    if (event.failed) number(trace_key::failed, 1);
    if (!event.error.empty()) words(trace_key::error, event.error);
    if (event.device) words(trace_key::device, to_string(*event.device));
    if (event.device_time) number(trace_key::device_ns, event.device_time->count());
    text_ += '}';
  }

  void write_event(const profiler::event& event) {
    const std::string name = json_text(event.name);
    const std::string_view category = kind_name(event.kind);
    begin_object();
    if (nested_.contains(event.number)) {
      text_ += fmt::format(R"({{"ph":"X","name":{},"cat":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},)", name,
                           category, event.node, event.thread, microseconds(event.began_ns),
                           static_cast<double>(event.duration_ns()) / 1000);
      write_arguments(event);
      text_ += '}';
      return;
    }
    text_ += fmt::format(R"({{"ph":"b","name":{},"cat":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f},)", name, category,
                         event.number, event.node, event.thread_of_begin(), microseconds(event.began_ns));
    write_arguments(event);
    text_ += '}';
    begin_object();
    text_ += fmt::format(R"({{"ph":"e","name":{},"cat":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f}}})", name, category,
                         event.number, event.node, event.thread_of_begin(), microseconds(event.ended_ns));
  }

  // An end of an arrow. Viewers tie it to the slice of the thread that it lies in: what has a track of its own has none.
  struct arrow_end {
    const profiler::event* of;
    std::uint32_t thread;
    std::int64_t at_ns;
    std::string_view mark;
  };
  void write_mark(const arrow_end& end) {
    if (nested_.contains(end.of->number)) return;
    begin_object();
    text_ += fmt::format(R"({{"ph":"X","name":{},"cat":"mark","pid":{},"tid":{},"ts":{:.3f},"dur":0.001,)",
                         json_text(fmt::format("{}: {}", end.of->name, end.mark)), end.of->node, end.thread,
                         microseconds(end.at_ns));
    write_arguments(*end.of);
    text_ += '}';
  }

  void write_arrow(std::string_view name, std::uint64_t id, const arrow_end& from, const arrow_end& to) {
    const auto one = [&](std::string_view phase, const arrow_end& end) {
      write_mark(end);
      begin_object();
      text_ +=
          fmt::format(R"({{"ph":"{}","name":"{}","cat":"flow","id":{},"pid":{},"tid":{},"ts":{:.3f}{}}})", phase, name,
                      id, end.of->node, end.thread, microseconds(end.at_ns), phase == "f" ? R"(,"bp":"e")" : "");
    };
    one("s", from);
    one("f", to);
  }

  // From a call to its handler, and back.
  void write_arrows() {
    std::unordered_map<std::uint64_t, const profiler::event*> calls;
    for (const profiler::event& each : from_.events) {
      if (each.kind == range_kind::call) calls.emplace(each.number, &each);
    }
    for (const profiler::event& each : from_.events) {
      if (each.kind != range_kind::handler) continue;
      const auto found = calls.find(each.parent);
      if (found == calls.end()) continue;
      const profiler::event& call = *found->second;
      write_arrow("request", 2 * each.number, {&call, call.thread_of_begin(), call.began_ns, "sent"},
                  {&each, each.thread_of_begin(), each.began_ns, "begun"});
      write_arrow("reply", 2 * each.number + 1, {&each, each.thread, each.ended_ns, "ended"},
                  {&call, call.thread, call.ended_ns, "answered"});
    }
  }

  const profiler::profile& from_;
  std::unordered_set<std::uint64_t> nested_;  // by number
  std::string text_;
  bool first_event_ = true;
};

}  // namespace
}  // namespace detail

namespace profiler {

const std::vector<metadata_key>& metadata_keys() { return detail::keys_of_traces(); }

std::string chrome_trace(const profile& from, const trace_options& how) {
  detail::require_certain_clocks(from, how.largest_uncertainty, "trace_options");
  return detail::trace_writer(from).write();
}

}  // namespace profiler
}  // namespace ferry::inline v0

#include "recorded_ranges.hpp"

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include "../device/device_work.hpp"
#include "../rpc/pipeline/interceptor_table.hpp"
#include "process_recordings.hpp"

namespace ferry::inline v0::detail {
namespace {

void drop_idle_sink() noexcept;
void begin_range(open_range& range) noexcept;
void end_range(open_range& range, const range_details* details, bool failed) noexcept;
std::unique_ptr<recorded_span> begin_recorded_span(std::string_view name, range_kind kind, std::int32_t node) noexcept;

constexpr range_sink recording_sink{&begin_range, &end_range, &begin_recorded_span};

// The work that an open range of this thread has queued on a device.
struct measured_range {
  const open_range* of;
  std::shared_ptr<device_interval> work;  // null: it cannot be measured
  measured_range* outer;
};
constinit thread_local measured_range* measured_ranges = nullptr;  // the innermost

bool measures(const open_range& range) noexcept {
  if (range.what->kind != range_kind::operation) return false;
  const auto* own = static_cast<const recording*>(range.recording);
  const auto* whole = static_cast<const process_recordings*>(range.whole);
  return (own && own->how().wishes.device_times) || (whole && whole->wishes().device_times);
}

// The first work of an operation, and of those that it is a part of: the outer ones first, as they end last.
void measure_from(const open_range* range, const stream& on) noexcept {
  if (!range || (measured_ranges && measured_ranges->of == range)) return;
  measure_from(range->outer, on);
  if (!measures(*range)) return;
  try {
    auto made = std::make_unique<measured_range>(measured_range{range, nullptr, measured_ranges});
    made->work = device_interval::begin(on);
    measured_ranges = made.release();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory, so no time
  }
}
void measure_work(const stream& on) noexcept { measure_from(profiled_thread_here().innermost, on); }

// Null: it has queued none.
std::shared_ptr<device_interval> end_of_work(const open_range& range) noexcept {
  if (!measured_ranges || measured_ranges->of != &range) return nullptr;
  const std::unique_ptr<measured_range> own(measured_ranges);
  measured_ranges = own->outer;
  if (own->work) own->work->end();
  return std::move(own->work);
}

// What waits for a pass waits for a future.
bool waits_already(const profiled_thread& thread, const recording_in_force* here) noexcept {
  const open_range* const inner = thread.innermost;
  return inner && inner->what->kind == range_kind::wait && inner->context_parent == (here ? here->parent : 0);
}

void begin_range(open_range& range) noexcept {
  const recording_in_force* here = current_value(current_recording);
  if (const timeline* on = timeline_here()) {
    on->push(range.what->name);
    range.shown = true;
    range.sink = &recording_sink;
  }
  event_targets to = event_targets::at(here);
  if (!to) return drop_idle_sink();
  profiled_thread& thread = profiled_thread_here();
  if (range.what->kind == range_kind::wait && waits_already(thread, here)) return;
  to.begin();
  range.sink = &recording_sink;
  range.number = new_event_number(thread);
  range.parent = event_within(thread, here);
  range.context_parent = here ? here->parent : 0;
  range.node = here ? here->node : -1;
  range.recording = to.own.detach();
  range.whole = to.whole.detach();
  range.outer = std::exchange(thread.innermost, &range);
  range.began = ticks_now();
}

// Without memory the event goes without them.
void add_details(recorded_event& to, const profile_wishes& wishes, const range_details* details,
                 std::shared_ptr<device_interval> on_device) noexcept {
  if (!on_device && !(details && (wishes.shapes || wishes.memory))) return;
  try {
    to.details = std::make_unique<event_details>();
    to.details->on_device = std::move(on_device);
    if (details && wishes.shapes) to.details->shapes = details->shapes();
    if (details && wishes.memory) to.details->bytes = details->bytes();
  } catch (const std::bad_alloc&) {
    to.details.reset();
  }
}

void end_range(open_range& range, const range_details* details, bool failed) noexcept {
  const std::int64_t now = ticks_now();
  if (range.shown) {
    if (const timeline* on = timeline_of_tool()) on->pop();
  }
  if (range.number == 0) return;  // no recording sees it
  profiled_thread& thread = profiled_thread_here();
  thread.innermost = range.outer;
  const event_targets to{
      ref_ptr<recording>::adopt(static_cast<recording*>(range.recording)),
      ref_ptr<const process_recordings>::adopt(static_cast<const process_recordings*>(range.whole)),
  };
  recorded_event event{.what = range.what, .number = range.number, .parent = range.parent, .began = range.began};
  event.ended = now;
  event.node = range.node;
  event.failed = failed;
  add_details(event, to.wishes(), details, end_of_work(range));
  to.add(thread, std::move(event), range.what);
}

class span_in_recordings final : public recorded_span {
 public:
  // Throws std::bad_alloc. `to` may be empty, `on` null.
  span_in_recordings(event_targets to, const timeline* on, const recording_in_force* here, std::string_view name,
                     range_kind kind, std::int32_t node)
      : to_(std::move(to)) {
    profiled_thread& thread = profiled_thread_here();
    if (to_.own) event_.what = &to_.own->name_range(name, kind);
    if (to_.whole) what_in_whole_ = &to_.whole->names().name_range(name, kind);
    event_.number = new_event_number(thread);
    event_.parent = event_within(thread, here);
    event_.node = node;
    event_.began_thread = number_of(thread);
    if (on) shown_.begin(*on, name, false);
    to_.begin();
    event_.began = ticks_now();
  }
  ~span_in_recordings() override {
    if (!ended_) to_.give_up();
  }

  void end(std::uint64_t call, const range_details* details, bool failed) noexcept override {
    event_.ended = ticks_now();
    shown_.end();
    ended_ = true;
    if (!to_) return;
    event_.call = call;
    event_.failed = failed;
    add_details(event_, to_.wishes(), details, nullptr);
    to_.add(profiled_thread_here(), std::move(event_), what_in_whole_);
  }

 private:
  const event_targets to_;
  recorded_event event_;
  const range_description* what_in_whole_ = nullptr;
  shown_range shown_;
  bool ended_ = false;
};

std::unique_ptr<recorded_span> begin_recorded_span(std::string_view name, range_kind kind, std::int32_t node) noexcept {
  const recording_in_force* here = current_value(current_recording);
  const timeline* const on = timeline_here();
  event_targets to = event_targets::at(here);
  if (!to && !on) {
    drop_idle_sink();
    return nullptr;
  }
  try {
    return std::make_unique<span_in_recordings>(std::move(to), on, here, name, kind, node);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// Ranges are seen while there is any recording, and the work of devices while there is one that wants its times. Requests come
// and go quickly: what they end leaves the sink in its place, for the next one, until a range finds that nothing records.
constinit std::mutex sink_mutex;
int measuring = 0;                                     // under the mutex
constinit std::atomic<bool> timeline_expected{false};  // changed under the mutex
// Twice the number of recordings, plus one while the sink is in its place, where it stays as long as that number is not zero.
constexpr std::uint32_t sink_is_set = 1;
constexpr std::uint32_t one_recording = 2;
constinit std::atomic<std::uint32_t> watched_by{0};

void set_range_sink() noexcept {  // under the mutex
  range_sink_in_use.store(&recording_sink, std::memory_order_release);
  watched_by.fetch_or(sink_is_set);
}
void drop_range_sink() noexcept {  // under the mutex
  std::uint32_t idle = sink_is_set;
  if (timeline_expected.load(std::memory_order_relaxed) || !watched_by.compare_exchange_strong(idle, 0)) return;
  range_sink_in_use.store(nullptr, std::memory_order_release);
}
void drop_idle_sink() noexcept {
  if (watched_by.load(std::memory_order_relaxed) != sink_is_set || timeline_expected.load(std::memory_order_relaxed))
    return;
  const std::lock_guard lock(sink_mutex);
  drop_range_sink();
}

void count_measuring(int change) noexcept {
  const std::lock_guard lock(sink_mutex);
  measuring += change;
  device_work_sink_in_use.store(measuring == 0 ? nullptr : &measure_work, std::memory_order_release);
}

// A tool that shows ranges shows those of calls and handlers, too.
void expect_timeline(bool expected) noexcept {
  const std::lock_guard lock(sink_mutex);
  if (timeline_expected.exchange(expected) == expected) return;
  if (expected) {
    set_range_sink();
  } else {
    drop_range_sink();
  }
  interceptor_table::watch_arrivals(expected ? 1 : -1);
  interceptor_table::watch_requests(expected ? 1 : -1);
}

// The tool itself is loaded with the first range.
[[maybe_unused]] const bool timeline_looked_for = [] {
  if (timeline_wanted()) expect_timeline(true);
  return true;
}();

}  // namespace

const timeline* timeline_here() noexcept {
  if (!timeline_expected.load(std::memory_order_relaxed)) return nullptr;
  const timeline* found = timeline_of_tool();
  if (!found) expect_timeline(false);
  return found;
}

void shown_range::begin(const timeline& on, std::string_view name, bool stays) noexcept {
  on_ = &on;
  if (stays) {
    thread_ = number_of(profiled_thread_here());
    on.push(name);
  } else {
    which_ = on.start(name);
  }
}

void shown_range::end_now() noexcept {
  if (thread_ == 0) {
    on_->end(which_);
  } else if (thread_ == number_of(profiled_thread_here())) {
    on_->pop();
  }
  on_ = nullptr;
}

void begin_recording(bool measures) noexcept {
  if ((watched_by.fetch_add(one_recording) & sink_is_set) == 0) [[unlikely]] {
    const std::lock_guard lock(sink_mutex);
    set_range_sink();
  }
  if (measures) count_measuring(1);
}

void end_recording(bool measures, bool of_request) noexcept {
  if (measures) count_measuring(-1);
  watched_by.fetch_sub(one_recording);
  if (!of_request) drop_idle_sink();
}

void found_no_recording() noexcept { drop_idle_sink(); }

}  // namespace ferry::inline v0::detail

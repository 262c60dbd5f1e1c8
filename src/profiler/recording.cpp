#include "recording.hpp"

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/future_state.hpp>

#include "../device/device_work.hpp"
#include "../rpc/worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

struct profiled_thread {
  std::uint64_t serial;  // of the recording that `ring` belongs to
  void* ring;
  open_range* innermost;
  std::uint32_t id;
};
constinit thread_local profiled_thread this_thread_profiled{0, nullptr, nullptr, 0};

// The name that name_call() has given this thread last: most calls are like the one before.
struct named_call {
  std::uint64_t serial;  // of the recording that has it
  std::string_view method;
  profiled_mode mode;
  std::int32_t caller;
  std::int32_t peer;
  const range_description* what;
};
constinit thread_local named_call last_named_call{0, {}, profiled_mode::sync, -1, -1, nullptr};

std::atomic<std::uint64_t> next_serial{1};

constexpr std::size_t most_reply_bytes = std::size_t{64} << 20U;
// Of memory for what comes with replies.
constexpr std::size_t shortest_chunk = std::size_t{1} << 10U;
constexpr std::size_t longest_chunk = std::size_t{1} << 16U;
// The events that a recording keeps of those within it, as a multiple of those of a thread.
constexpr std::size_t rings_of_inner = 16;
constexpr std::size_t most_profile_names = std::size_t{1} << 16U;
constexpr range_description another_call{"(another call: there are too many names)", range_kind::call};
constexpr range_description another_range{"(another range: there are too many names)", range_kind::user};

// ---------------------------------------------------------------- ranges of the library

void begin_range(open_range& range) noexcept;
void end_range(open_range& range, const range_details* details, bool failed) noexcept;

constexpr range_sink recording_sink{&begin_range, &end_range};

// The work that an open range of this thread has queued on a device.
struct measured_range {
  const open_range* of;
  std::shared_ptr<device_interval> work;  // null: it cannot be measured
  measured_range* outer;
};
constinit thread_local measured_range* measured_ranges = nullptr;  // the innermost

bool measures(const open_range& range) noexcept {
  return range.what->kind == range_kind::operation &&
         static_cast<const recording*>(range.recording)->how().wishes.device_times;
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
void measure_work(const stream& on) noexcept { measure_from(this_thread_profiled.innermost, on); }

// Null: it has queued none.
std::shared_ptr<device_interval> end_of_work(const open_range& range) noexcept {
  if (!measured_ranges || measured_ranges->of != &range) return nullptr;
  const std::unique_ptr<measured_range> own(measured_ranges);
  measured_ranges = own->outer;
  if (own->work) own->work->end();
  return std::move(own->work);
}

void begin_range(open_range& range) noexcept {
  const recording_in_force* here = current_value(current_recording);
  if (!here || here->to->closed()) return;
  range.sink = &recording_sink;
  here->to->add_ref();
  range.recording = here->to.get();
  range.number = here->to->begin();
  range.parent = event_here(*here);
  range.context_parent = here->parent;
  range.outer = std::exchange(this_thread_profiled.innermost, &range);
  range.began = ticks_now();
}

void end_range(open_range& range, const range_details* details, bool failed) noexcept {
  const std::int64_t now = ticks_now();
  this_thread_profiled.innermost = range.outer;
  const auto to = ref_ptr<recording>::adopt(static_cast<recording*>(range.recording));
  recorded_event event{.what = range.what, .number = range.number, .parent = range.parent, .began = range.began};
  event.ended = now;
  event.node = to->how().node;
  event.failed = failed;
  const profile_wishes& wishes = to->how().wishes;
  std::shared_ptr<device_interval> on_device = end_of_work(range);
  if (on_device || (details && (wishes.shapes || wishes.memory))) {
    try {
      event.details = std::make_unique<event_details>();
      event.details->on_device = std::move(on_device);
      if (details && wishes.shapes) event.details->shapes = details->shapes();
      if (details && wishes.memory) event.details->bytes = details->bytes();
    } catch (const std::bad_alloc&) {
      event.details.reset();  // the event without them
    }
  }
  to->add(std::move(event));
}

// Ranges are seen while there is any recording, and the work of devices while there is one that wants its times.
constinit std::mutex sink_mutex;
int recordings = 0;  // under the mutex, as is the next one
int measuring = 0;

void count_recordings(int change, bool measures) noexcept {
  const std::lock_guard lock(sink_mutex);
  recordings += change;
  measuring += measures ? change : 0;
  range_sink_in_use.store(recordings == 0 ? nullptr : &recording_sink, std::memory_order_release);
  device_work_sink_in_use.store(measuring == 0 ? nullptr : &measure_work, std::memory_order_release);
}

}  // namespace

std::uint64_t event_here(const recording_in_force& here) noexcept {
  const open_range* inner = this_thread_profiled.innermost;
  return inner && inner->recording == here.to.get() && inner->context_parent == here.parent ? inner->number
                                                                                            : here.parent;
}

std::uint32_t thread_here() noexcept {
  std::uint32_t& id = this_thread_profiled.id;
  if (id == 0) id = static_cast<std::uint32_t>(::syscall(SYS_gettid));
  return id;
}

// ---------------------------------------------------------------- rings

recording::recording(const properties& how)
    : how_(how),
      serial_(next_serial.fetch_add(1, std::memory_order_relaxed)),
      start_(how.brief ? clock_reading() : clock_reading::now()) {
  count_recordings(1, how.wishes.device_times);
}
recording::~recording() { stop_watching(); }

void recording::stop_watching() noexcept {
  if (!closed_.exchange(true)) count_recordings(-1, how_.wishes.device_times);
}

ref_ptr<recording> recording::make(const properties& how) { return ref_ptr<recording>::adopt(new recording(how)); }

recording::ring& recording::ring_of_thread() {
  profiled_thread& here = this_thread_profiled;
  if (here.serial == serial_) return *static_cast<ring*>(here.ring);
  const std::uint32_t thread = thread_here();
  const std::lock_guard lock(mutex_);
  ring* mine = &first_ring_;
  if (first_thread_ == 0) first_thread_ = thread;
  if (first_thread_ != thread) {
    std::unique_ptr<ring>& own = rings_[thread];
    if (!own) own = std::make_unique<ring>();
    mine = own.get();
  }
  here.serial = serial_;
  here.ring = mine;
  return *mine;
}

void recording::add(recorded_event&& event) noexcept {
  open_.fetch_sub(1, std::memory_order_relaxed);
  if (closed()) return;
  if (event.thread == 0) event.thread = thread_here();
  try {
    ring& mine = ring_of_thread();
    const std::lock_guard lock(mine.mutex);
    if (mine.events.size() < how_.events_per_thread) {
      mine.events.push_back(std::move(event));
    } else {
      lost_.fetch_add(1, std::memory_order_relaxed);
      if (mine.events.empty()) return;
      mine.events[mine.next] = std::move(event);
      mine.next = mine.next + 1 == mine.events.size() ? 0 : mine.next + 1;
    }
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(1, std::memory_order_relaxed);
  }
}

bool recording::end_without_events() noexcept {
  const std::lock_guard lock(mutex_);
  if (open_.load() != 1 || lost_.load() != 0 || !replies_.empty() || !inner_.empty() || !rings_.empty()) return false;
  {
    const std::lock_guard ring_lock(first_ring_.mutex);
    if (!first_ring_.events.empty()) return false;
  }
  stop_watching();
  return true;
}

void recording::note_worker(std::int32_t id, std::string_view name) {
  if (id < 0 || id > worker_id::max) return;
  const auto place = static_cast<std::size_t>(id);
  if (workers_.size() <= place) workers_.resize(place + 1);
  if (workers_[place].empty()) workers_[place] = name;
}

void recording::add_reply(std::uint64_t call, const range_description& name, std::int64_t began, std::int64_t ended,
                          std::int32_t node, std::span<const std::byte> content) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (closed()) return;
    if (replies_.empty() || replies_.back().contents.capacity() - replies_.back().contents.size() < content.size()) {
      const std::size_t next = replies_.empty() ? 0 : 2 * replies_.back().contents.capacity();
      reply_chunk chunk;
      chunk.contents.reserve(std::max(content.size(), std::clamp(next, shortest_chunk, longest_chunk)));
      replies_.push_back(std::move(chunk));
    }
    reply_chunk& to = replies_.back();
    to.replies.push_back({call, &name, began, ended, node, content.size()});
    to.contents.insert(to.contents.end(), content.begin(), content.end());  // there is room
    reply_bytes_ += content.size() + sizeof(reply);
    while (reply_bytes_ > most_reply_bytes) drop_oldest_replies();
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(1, std::memory_order_relaxed);
  }
}

void recording::drop_oldest_replies() noexcept {
  const reply_chunk& oldest = replies_.front();
  std::span<const std::byte> contents = oldest.contents;
  for (const reply& each : oldest.replies) {
    lost_.fetch_add(events_in_batch(contents.first(each.bytes)), std::memory_order_relaxed);
    contents = contents.subspan(each.bytes);
    reply_bytes_ -= each.bytes + sizeof(reply);
  }
  replies_.pop_front();
}

void recording::add_inner(const profiler::profile& inner, std::uint64_t parent) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (closed()) return;
    for (std::size_t i = 0; i != inner.workers.size(); ++i) note_worker(static_cast<std::int32_t>(i), inner.workers[i]);
    inner_.push_back({parent, inner});
    inner_events_ += inner.events.size() + 1;
    while ((inner_events_ - 1) / rings_of_inner > how_.events_per_thread && inner_.size() > 1) {
      const profiler::profile& oldest = inner_.front().events;
      inner_events_ -= oldest.events.size() + 1;
      lost_.fetch_add(oldest.events.size() + oldest.lost, std::memory_order_relaxed);
      inner_.pop_front();
    }
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(inner.events.size(), std::memory_order_relaxed);
  }
}

// ---------------------------------------------------------------- names

const range_description& recording::name_range(std::string_view name, range_kind kind) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(name);
  if (found != ranges_.end() && found->second->kind == kind) return *found->second;
  if (names_.size() >= most_profile_names) return another_range;
  kept_name& made = *names_.emplace_back(std::make_unique<kept_name>());
  made.text = name;
  made.what = {made.text, kind};
  ranges_[made.text] = &made.what;
  return made.what;
}

namespace {

std::string text_of_call(std::string_view method, profiled_mode mode, std::string_view caller, std::string_view peer) {
  switch (mode) {
    case profiled_mode::sync: return fmt::format("rpc_sync#{}({} -> {})", method, caller, peer);
    case profiled_mode::async: return fmt::format("rpc_async#{}({} -> {})", method, caller, peer);
    case profiled_mode::remote: return fmt::format("rpc_remote#{}({} -> {})", method, caller, peer);
    case profiled_mode::notify: return fmt::format("rpc_notify#{}({} -> {})", method, caller, peer);
    case profiled_mode::to_here: break;
  }
  return fmt::format("to_here#({})->({})", caller, peer);
}

}  // namespace

const range_description& recording::name_call(std::string_view method, profiled_mode mode, std::int32_t caller,
                                              std::string_view caller_name, std::int32_t peer,
                                              std::string_view peer_name) {
  named_call& last = last_named_call;
  if (last.serial == serial_ && last.mode == mode && last.caller == caller && last.peer == peer &&
      last.method == method)
    return *last.what;
  const std::lock_guard lock(mutex_);
  if (names_.size() >= most_profile_names && !calls_.contains({method.data(), mode, caller, peer})) return another_call;
  const kept_name*& known = calls_[{method.data(), mode, caller, peer}];
  // The text of a method whose library was unloaded may have left its address to another.
  if (known && known->method == method) {
    last = {serial_, known->method, mode, caller, peer, &known->what};
    return known->what;
  }
  note_worker(caller, caller_name);
  note_worker(peer, peer_name);
  kept_name& made = *names_.emplace_back(std::make_unique<kept_name>());
  made.method = method;
  made.text = text_of_call(method, mode, caller_name, peer_name);
  made.what = {made.text, range_kind::call};
  known = &made;
  last = {serial_, made.method, mode, caller, peer, &made.what};
  return made.what;
}

// ---------------------------------------------------------------- the end

namespace {

constexpr std::string_view remote_mark = "#remote_op: ";

// The call was sent at `began` and answered at `ended` on the caller's clock, received and answered at two times on the callee's.
// Each way took some time, of which only the sum is known: the offset is right within half of it.
profiler::clock_offset offset_of(std::int64_t began, std::int64_t ended, const profile_batch& batch) noexcept {
  const std::int64_t there = batch.answered_ns - batch.received_ns;
  const std::int64_t ways = std::max<std::int64_t>(0, ended - began - there);
  const std::int64_t first = batch.received_ns - began;
  const std::int64_t second = batch.answered_ns - ended;
  return {batch.node, second + (first - second) / 2, (ways + 1) / 2, 1};
}

template <class Replies>
std::vector<profiler::clock_offset> compare_clocks(const Replies& replies, const tick_scale& scale) {
  std::map<std::int32_t, profiler::clock_offset> best;
  for (const auto& each : replies) {
    const profiler::clock_offset one =
        offset_of(scale.steady_ns(each.of.began), scale.steady_ns(each.of.ended), each.batch);
    const auto [known, added] = best.emplace(one.node, one);
    if (added) continue;
    ++known->second.calls;
    if (one.uncertainty_ns >= known->second.uncertainty_ns) continue;
    known->second.offset_ns = one.offset_ns;
    known->second.uncertainty_ns = one.uncertainty_ns;
  }
  std::vector<profiler::clock_offset> all;
  for (const auto& [node, each] : best) all.push_back(each);
  return all;
}

}  // namespace

void recording::add_events_of(const told_reply& from, const std::vector<profiler::clock_offset>& clocks,
                              profiler::profile& to, std::vector<awaited_time>* awaited) {
  const std::size_t first = to.events.size();
  const auto clock = std::find_if(clocks.begin(), clocks.end(),
                                  [&](const profiler::clock_offset& each) { return each.node == from.batch.node; });
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t next = reserve(from.batch.events.size());
  for (const profiler::event& each : from.batch.events) numbers.emplace(each.number, next++);
  next -= from.batch.events.size();
  for (const profiler::event& each : from.batch.events) {
    profiler::event& made = to.events.emplace_back(each);
    made.name = fmt::format("{}{}{}", from.of.name->name, remote_mark, each.name);
    made.remote = true;
    made.number = next++;  // of its own, also where a peer has given a number twice
    const auto parent = numbers.find(each.parent);
    made.parent = parent == numbers.end() ? from.of.call : parent->second;
    made.began_ns -= clock->offset_ns;
    made.ended_ns -= clock->offset_ns;
    made.uncertainty_ns += clock->uncertainty_ns;
  }
  to.lost += from.batch.lost;
  if (!how_.wishes.device_times) return;
  for (const told_device_time& each : from.batch.device_times) {
    profiler::event& of = to.events[first + each.event];
    of.device = each.on;
    if (each.time_ns >= 0) of.device_time = std::chrono::nanoseconds(each.time_ns);
    if (each.time_ns == device_time_pending && awaited)
      awaited->push_back({.event = of.number, .node = of.node, .token = each.token});
  }
}

void recording::add_events_of(const inner_profile& from, profiler::profile& to) {
  std::unordered_map<std::uint64_t, std::uint64_t> numbers;
  std::uint64_t next = reserve(from.events.events.size());
  for (const profiler::event& each : from.events.events) numbers.emplace(each.number, next++);
  for (const profiler::event& each : from.events.events) {
    profiler::event& made = to.events.emplace_back(each);
    made.number = numbers.at(each.number);
    const auto parent = numbers.find(each.parent);
    made.parent = parent == numbers.end() ? from.parent : parent->second;
  }
  to.lost += from.events.lost;
}

// Replies whose profile is damaged count as lost.
std::vector<recording::told_reply> recording::read(const std::list<reply_chunk>& replies) {
  std::vector<told_reply> all;
  for (const reply_chunk& chunk : replies) {
    std::span<const std::byte> contents = chunk.contents;
    for (const reply& each : chunk.replies) {
      const std::span<const std::byte> content = contents.first(each.bytes);
      contents = contents.subspan(each.bytes);
      if (const std::exception_ptr problem = caught([&] { all.push_back({each, decode_profile_batch(content)}); })) {
        log(log_level::warning, "the profile that came with a reply cannot be read: " + describe_exception(problem));
        lost_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      all.back().batch.node = each.node;
    }
  }
  return all;
}

void recording::take_events(ring& from, const tick_scale& scale, profiler::profile& to,
                            std::vector<awaited_time>* awaited) {
  std::vector<recorded_event> taken;
  {
    const std::lock_guard lock(from.mutex);
    taken.swap(from.events);
  }
  to.events.reserve(to.events.size() + taken.size());
  for (recorded_event& each : taken) {
    profiler::event& made = to.events.emplace_back();
    made.name = each.what->name;
    made.kind = each.what->kind;
    made.node = each.node;
    made.failed = each.failed;
    made.thread = each.thread;
    made.number = each.number;
    made.parent = each.parent;
    made.began_ns = scale.steady_ns(each.began);
    made.ended_ns = scale.steady_ns(each.ended);
    made.queued_ns = each.queued_ns;
    if (!each.details) continue;
    made.shapes = std::move(each.details->shapes);
    made.bytes = each.details->bytes;
    made.error = std::move(each.details->error);
    if (!each.details->on_device) continue;
    made.device = each.details->on_device->device();
    const std::int64_t time_ns = each.details->on_device->length_ns();
    if (time_ns >= 0) made.device_time = std::chrono::nanoseconds(time_ns);
    if (time_ns == device_time_pending && awaited)
      awaited->push_back({.event = made.number, .node = made.node, .here = std::move(each.details->on_device)});
  }
}

profiler::profile recording::finish(std::vector<awaited_time>* awaited) {
  const std::int64_t ended = ticks_now();
  profiler::profile all;
  std::list<reply_chunk> replies;
  std::list<inner_profile> inner;
  std::vector<ring*> rings{&first_ring_};
  {
    // Threads that still record wait for no more than this.
    const std::lock_guard lock(mutex_);
    for (const auto& [thread, each] : rings_) rings.push_back(each.get());
    stop_watching();
    replies.swap(replies_);
    inner.swap(inner_);
    all.workers.swap(workers_);
  }
  const tick_scale scale = how_.brief ? tick_scale::recent() : tick_scale::since(start_);
  all.node = how_.node;
  all.ended_ns = scale.steady_ns(ended);
  for (ring* each : rings) take_events(*each, scale, all, awaited);
  const std::vector<told_reply> told = read(replies);
  all.clocks = compare_clocks(told, scale);
  for (const told_reply& each : told) add_events_of(each, all.clocks, all, awaited);
  for (const inner_profile& each : inner) add_events_of(each, all);
  std::sort(all.events.begin(), all.events.end(), [](const profiler::event& a, const profiler::event& b) {
    return a.began_ns != b.began_ns ? a.began_ns < b.began_ns : a.number < b.number;
  });
  all.began_ns = !how_.brief ? start_.steady_ns : all.events.empty() ? all.ended_ns : all.events.front().began_ns;
  all.lost += lost_.load();
  all.unfinished = static_cast<std::uint64_t>(std::max<std::int64_t>(0, open_.load()));
  return all;
}

}  // namespace ferry::inline v0::detail

#include "recording.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/future_state.hpp>

#include "../rpc/worker/worker_core.hpp"
#include "recorded_ranges.hpp"

namespace ferry::inline v0::detail {
namespace {

std::atomic<std::uint64_t> next_serial{1};

constexpr std::size_t most_reply_bytes = std::size_t{64} << 20U;
// Of memory for what comes with replies.
constexpr std::size_t shortest_chunk = std::size_t{1} << 10U;
constexpr std::size_t longest_chunk = std::size_t{1} << 16U;
// The events that a recording keeps of those within it, as a multiple of those of a thread.
constexpr std::size_t rings_of_inner = 16;
// More threads than that share rings.
constexpr std::size_t most_rings = 64;
// Of memory for events.
constexpr std::size_t events_of_first_chunk = 8;
constexpr std::size_t events_of_chunk = 256;

}  // namespace

recorded_event copy_of(const recorded_event& from, const profile_wishes& wishes) noexcept {
  recorded_event made{.what = from.what, .number = from.number, .parent = from.parent, .began = from.began};
  made.ended = from.ended;
  made.queued_ns = from.queued_ns;
  made.call = from.call;
  made.node = from.node;
  made.peer = from.peer;
  made.thread = from.thread;
  made.began_thread = from.began_thread;
  made.failed = from.failed;
  made.answered = from.answered;
  made.answer = from.answer;
  if (!from.details) return made;
  try {
    made.details = std::make_unique<event_details>(*from.details);
  } catch (const std::bad_alloc&) {
    return made;  // the event without them
  }
  if (!wishes.shapes) made.details->shapes.clear();
  if (!wishes.memory) made.details->bytes = -1;
  if (!wishes.device_times) made.details->on_device.reset();
  return made;
}

// ---------------------------------------------------------------- rings

recording::recording(const properties& how)
    : how_(how),
      serial_(next_serial.fetch_add(1, std::memory_order_relaxed)),
      start_(how.brief ? clock_reading() : clock_reading::now()) {
  begin_recording(how.wishes.device_times);
}
recording::~recording() { stop_watching(); }

void recording::stop_watching() noexcept {
  if (!closed_.exchange(true)) end_recording(how_.wishes.device_times, how_.brief);
}

ref_ptr<recording> recording::make(const properties& how) { return ref_ptr<recording>::adopt(new recording(how)); }

recording::ring& recording::ring_of(profiled_thread& here) {
  profiled_thread::known_ring& known = here.rings[serial_ % here.rings.size()];
  if (known.serial == serial_) [[likely]]
    return *static_cast<ring*>(known.ring);
  const std::uint32_t thread = number_of(here);
  const std::lock_guard lock(mutex_);
  ring* mine = &first_ring_;
  if (first_thread_ == 0) first_thread_ = thread;
  if (first_thread_ != thread) {
    const auto own = rings_.find(thread);
    if (own != rings_.end()) {
      mine = own->second.get();
    } else if (rings_.size() < most_rings) {
      mine = rings_.emplace(thread, std::make_unique<ring>()).first->second.get();
    } else {
      mine = std::next(rings_.begin(), static_cast<std::ptrdiff_t>(thread % most_rings))->second.get();
    }
  }
  known = {serial_, mine};
  return *mine;
}

// Of a full ring it takes the place of the oldest event. Returns how many events are lost by that: of a call also the one that came
// with its reply.
std::uint64_t recording::ring::add(recorded_event&& event, std::size_t most) {
  const auto events_of = [](const recorded_event& each) -> std::uint64_t { return each.answered ? 2 : 1; };
  if (count < most) {
    if (chunks.empty() || chunks.back().size() == chunks.back().capacity()) {
      const std::size_t usual = chunks.empty() ? events_of_first_chunk : 2 * chunks.back().capacity();
      std::vector<recorded_event> fresh;
      fresh.reserve(std::min({usual, events_of_chunk, most - count}));
      chunks.push_back(std::move(fresh));
    }
    chunks.back().push_back(std::move(event));
    ++count;
    return 0;
  }
  if (count == 0) return events_of(event);
  recorded_event& oldest = chunks[chunk][next];
  if (++next == chunks[chunk].size()) {
    next = 0;
    if (++chunk == chunks.size()) chunk = 0;
  }
  const std::uint64_t lost = events_of(oldest);
  oldest = std::move(event);
  return lost;
}

void recording::add(profiled_thread& here, recorded_event&& event) noexcept {
  note_use();
  if (closed()) return give_up();
  if (event.thread == 0) event.thread = number_of(here);
  if (event.node < 0) event.node = how_.node;
  try {
    ring& mine = ring_of(here);
    std::uint64_t lost = 0;
    {
      const std::lock_guard lock(mine.mutex);
      lost = mine.add(std::move(event), how_.events_per_thread);
      ++mine.added;
    }
    if (lost != 0) lost_.fetch_add(lost, std::memory_order_relaxed);
  } catch (const std::bad_alloc&) {
    lost_.fetch_add(event.answered ? 2 : 1, std::memory_order_relaxed);
    give_up();
  }
}

bool recording::end_without_events() noexcept {
  // What adds to it says so before its own event is over.
  const std::uint64_t given_up = given_up_.load(std::memory_order_acquire);
  if (begun_.load(std::memory_order_relaxed) - given_up != 1 || used_.load(std::memory_order_relaxed)) return false;
  closed_.store(true, std::memory_order_relaxed);
  end_recording(how_.wishes.device_times, how_.brief);
  return true;
}

bool recording::begin_again(std::int32_t node, const profile_wishes& wishes) noexcept {
  if (!how_.brief || references_.load(std::memory_order_acquire) != 1 || !closed() ||
      used_.load(std::memory_order_relaxed))
    return false;
  how_.node = node;
  how_.wishes = wishes;
  begun_.store(1, std::memory_order_relaxed);
  given_up_.store(0, std::memory_order_relaxed);
  closed_.store(false, std::memory_order_relaxed);
  begin_recording(wishes.device_times);
  return true;
}

void recording::add_reply(std::uint64_t call, const range_description& name, std::int64_t began, std::int64_t ended,
                          std::int32_t node, std::span<const std::byte> content) noexcept {
  note_use();
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
  note_use();
  try {
    for (std::size_t i = 0; i != inner.workers.size(); ++i)
      names().note_worker(static_cast<std::int32_t>(i), inner.workers[i]);
    const std::lock_guard lock(mutex_);
    if (closed()) return;
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

// ---------------------------------------------------------------- the end

namespace {

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
std::vector<profiler::clock_offset> compare_clocks(const Replies& replies, const tick_scale& scale, std::int32_t own) {
  std::map<std::int32_t, profiler::clock_offset> best;
  for (const auto& each : replies) {
    if (each.batch.node == own) continue;  // a call to oneself: one clock
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
  std::uint64_t next = reserve_event_numbers(from.batch.events.size());
  for (const profiler::event& each : from.batch.events) numbers.emplace(each.number, next++);
  next -= from.batch.events.size();
  for (const profiler::event& each : from.batch.events) {
    profiler::event& made = to.events.emplace_back(each);
    made.name = fmt::format("{}{}{}", from.of.name->name, remote_mark, each.name);
    made.remote = true;
    made.number = next++;  // of its own, also where a peer has given a number twice
    const auto parent = numbers.find(each.parent);
    made.parent = parent == numbers.end() ? from.of.call : parent->second;
    if (clock == clocks.end()) continue;  // the same clock
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
  std::uint64_t next = reserve_event_numbers(from.events.events.size());
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
void recording::read(const std::list<reply_chunk>& replies, std::vector<told_reply>& all) {
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
}

std::uint64_t recording::take_events(ring& from, const tick_scale& scale, profiler::profile& to,
                                     std::vector<awaited_time>* awaited, std::vector<told_reply>& told) {
  std::vector<std::vector<recorded_event>> taken;
  std::uint64_t added = 0;
  {
    const std::lock_guard lock(from.mutex);
    taken.swap(from.chunks);
    added = from.added;
    to.events.reserve(to.events.size() + std::exchange(from.count, 0));
    from.chunk = from.next = 0;
  }
  const auto take = [&](recorded_event& each) {
    profiler::event& made = to.events.emplace_back();
    made.name = each.what->name;
    made.kind = each.what->kind;
    made.node = each.node;
    made.failed = each.failed;
    made.thread = each.thread;
    made.began_thread = each.began_thread == each.thread ? 0 : each.began_thread;
    made.number = each.number;
    made.parent = each.parent;
    made.began_ns = scale.steady_ns(each.began);
    made.ended_ns = scale.steady_ns(each.ended);
    made.queued_ns = each.queued_ns;
    made.peer = each.peer;
    made.call = each.call;
    if (each.answered)
      told.push_back({{each.number, each.what, each.began, each.ended, each.peer, 0}, batch_of(each.answer)});
    if (each.answered) told.back().batch.node = each.peer;
    if (!each.details) return;
    made.shapes = std::move(each.details->shapes);
    made.bytes = each.details->bytes;
    made.error = std::move(each.details->error);
    if (!each.details->on_device) return;
    made.device = each.details->on_device->device();
    const std::int64_t time_ns = each.details->on_device->length_ns();
    if (time_ns >= 0) made.device_time = std::chrono::nanoseconds(time_ns);
    if (time_ns == device_time_pending && awaited)
      awaited->push_back({.event = made.number, .node = made.node, .here = std::move(each.details->on_device)});
  };
  for (std::vector<recorded_event>& chunk : taken) {
    for (recorded_event& each : chunk) take(each);
  }
  return added;
}

// Brief answers leave the name of the method to the caller.
void recording::name_handlers(std::vector<told_reply>& of) {
  if (std::none_of(of.begin(), of.end(), [](const told_reply& each) { return each.batch.brief; })) return;
  const auto methods = names().methods();
  for (told_reply& each : of) {
    if (!each.batch.brief) continue;
    each.batch.events.front().node = each.of.node;
    const auto found = methods.find(each.of.name);
    each.batch.events.front().name =
        found == methods.end() ? "(another method: there are too many names)" : found->second;
  }
}

// Of those that had begun before, have not ended, or are lost.
void recording::drop_missing_parents(profiler::profile& of) {
  std::unordered_set<std::uint64_t> numbers;
  for (const profiler::event& each : of.events) numbers.insert(each.number);
  for (profiler::event& each : of.events) {
    if (each.parent != 0 && !numbers.contains(each.parent)) each.parent = 0;
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
  }
  all.workers = names().workers();
  const tick_scale scale = how_.brief ? tick_scale::recent() : tick_scale::since(start_);
  all.node = how_.node;
  all.ended_ns = scale.steady_ns(ended);
  std::vector<told_reply> told;
  std::uint64_t over = 0;
  for (ring* each : rings) over += take_events(*each, scale, all, awaited, told);
  read(replies, told);
  name_handlers(told);
  all.clocks = compare_clocks(told, scale, how_.node);
  for (const told_reply& each : told) add_events_of(each, all.clocks, all, awaited);
  for (const inner_profile& each : inner) add_events_of(each, all);
  if (!how_.brief) drop_missing_parents(all);
  std::sort(all.events.begin(), all.events.end(), [](const profiler::event& a, const profiler::event& b) {
    return a.began_ns != b.began_ns ? a.began_ns < b.began_ns : a.number < b.number;
  });
  all.began_ns = !how_.brief ? start_.steady_ns : all.events.empty() ? all.ended_ns : all.events.front().began_ns;
  all.lost += lost_.load();
  over += given_up_.load();
  const std::uint64_t begun = begun_.load();
  all.unfinished = begun > over ? begun - over : 0;
  return all;
}

}  // namespace ferry::inline v0::detail

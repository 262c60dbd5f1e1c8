#include "flight_recorder.hpp"

#include <algorithm>
#include <new>
#include <tuple>
#include <utility>

#include <sys/mman.h>
#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {
namespace {

std::int64_t steady_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count();
}

std::uint64_t counter_now() noexcept {
  const std::uint64_t raw = flight_time::now().raw();
  return (raw & 1U) != 0 ? raw >> 1U : 0;
}

}  // namespace

std::string_view to_string(flight_event what) noexcept {
  switch (what) {
    case flight_event::call_started: return "call_started";
    case flight_event::call_sent: return "call_sent";
    case flight_event::call_replied: return "call_replied";
    case flight_event::call_failed: return "call_failed";
    case flight_event::call_timed_out: return "call_timed_out";
    case flight_event::call_cancelled: return "call_cancelled";
    case flight_event::one_way_sent: return "one_way_sent";
    case flight_event::request_received: return "request_received";
    case flight_event::handler_begun: return "handler_begun";
    case flight_event::handler_returned: return "handler_returned";
    case flight_event::request_answered: return "request_answered";
    case flight_event::request_failed: return "request_failed";
    case flight_event::request_done: return "request_done";
    case flight_event::connection_opened: return "connection_opened";
    case flight_event::connection_accepted: return "connection_accepted";
    case flight_event::connection_lost: return "connection_lost";
    case flight_event::member: return "member";
  }
  return "unknown";
}

flight_calendar::flight_calendar() noexcept {
  read();
  first_ns_ = last_ns_;
  first_ticks_ = last_ticks_;
}

// A thread may be preempted between the two reads: use the closest pair of several.
void flight_calendar::read() noexcept {
  constexpr int tries = 8;
  std::uint64_t closest = ~std::uint64_t{0};
  for (int i = 0; i != tries; ++i) {
    const std::uint64_t before = counter_now();
    const std::int64_t now = steady_now();
    const std::uint64_t took = counter_now() - before;
    if (took >= closest) continue;
    closest = took;
    last_ns_ = now;
    last_ticks_ = before + took / 2;
  }
}

std::int64_t flight_calendar::steady_ns(flight_time at) const noexcept {
  const std::uint64_t value = at.raw() >> 1U;
  if ((at.raw() & 1U) == 0) return static_cast<std::int64_t>(value);
  if (last_ticks_ <= first_ticks_) return first_ns_;
  const double rate = static_cast<double>(last_ns_ - first_ns_) / static_cast<double>(last_ticks_ - first_ticks_);
  const auto since = static_cast<std::int64_t>(value - last_ticks_);
  return last_ns_ + static_cast<std::int64_t>(static_cast<double>(since) * rate);
}

flight_recorder::flight_recorder(std::size_t events) {
  if (events == 0) return;
  const std::size_t capacity = std::bit_ceil(events);
  // Untouched pages, so that an idle worker does not use memory for them.
  void* const memory = ::mmap(nullptr, capacity * words_per_event * sizeof(std::uint64_t), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {  // NOLINT(cppcoreguidelines-pro-type-cstyle-cast): the system's macro
    log(log_level::warning, "no memory for the flight recorder: it is off");
    return;
  }
  words_ = static_cast<std::uint64_t*>(memory);
  mask_ = capacity - 1;
}

flight_recorder::~flight_recorder() {
  if (words_) ::munmap(words_, capacity() * words_per_event * sizeof(std::uint64_t));
}

void flight_recorder::add(flight_event what, flight_time at, worker_id peer, std::uint64_t call, std::uint64_t method,
                          std::uint64_t bytes, errc code, std::string_view text) noexcept {
  if (!words_) return;
  std::uint64_t number = 0;
  if (!text.empty()) {
    std::lock_guard lock(texts_mutex_);
    kept_text& place = texts_[next_text_ % kept_texts];
    place.number = 0;
    try {
      place.text = text.substr(0, longest_text);
      number = place.number = next_text_++;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the event has no text then
    }
  }
  put(what, at, peer, call, method, bytes, code, number);
}

std::vector<flight_entry> flight_recorder::entries() const {
  std::vector<flight_entry> result;
  if (!words_) return result;
  flight_calendar calendar = calendar_;
  calendar.read();
  const std::uint64_t end = count();
  const std::uint64_t begin = end > capacity() ? end - capacity() : 0;
  result.reserve(end - begin);
  std::lock_guard lock(texts_mutex_);
  for (std::uint64_t number = begin; number != end; ++number) {
    std::uint64_t* place = words_ + (number & mask_) * words_per_event;
    event_words words{};
    for (std::size_t i = 0; i != words.size(); ++i) {
      words[i] = std::atomic_ref(place[i]).load(std::memory_order_relaxed);
    }
    const std::uint64_t sum = std::atomic_ref(place[words.size()]).load(std::memory_order_relaxed);
    if (words[0] != number + 1 || sum != check(words)) continue;
    flight_entry& entry = result.emplace_back();
    entry.number = number;
    entry.steady_ns = calendar.steady_ns(flight_time::of_raw(words[1]));
    entry.call = words[2];
    entry.method = words[3];
    entry.bytes = words[4];
    entry.what = static_cast<flight_event>(words[5] & 0xffU);
    entry.code = static_cast<errc>((words[5] >> 8U) & 0xffffU);
    entry.peer = worker_id{static_cast<std::int32_t>(static_cast<std::uint32_t>(words[5] >> 32U))};
    const kept_text& text = texts_[words[6] % kept_texts];
    if (words[6] != 0 && text.number == words[6]) entry.text = text.text;
  }
  std::sort(result.begin(), result.end(), [](const flight_entry& a, const flight_entry& b) {
    return std::tie(a.steady_ns, a.number) < std::tie(b.steady_ns, b.number);
  });
  return result;
}

}  // namespace ferry::inline v0::detail

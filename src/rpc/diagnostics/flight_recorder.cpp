#include "flight_recorder.hpp"

#include <algorithm>
#include <bit>
#include <memory>
#include <tuple>
#include <utility>

namespace ferry::inline v0::detail {

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
    case flight_event::late_reply: return "late_reply";
  }
  return "unknown";
}

std::optional<flight_entry> flight_entry_of(const flight_words& words, std::uint64_t check) {
  if (words[0] == 0 || check != flight_check(words)) return std::nullopt;
  flight_entry entry;
  entry.number = words[0] - 1;
  entry.call = words[2];
  entry.method = words[3];
  entry.bytes = words[4];
  entry.what = static_cast<flight_event>(words[5] & 0xffU);
  entry.code = static_cast<errc>((words[5] >> 8U) & 0xffffU);
  entry.peer = worker_id{static_cast<std::int32_t>(static_cast<std::uint32_t>(words[5] >> 32U))};
  return entry;
}

flight_recorder::flight_recorder(std::size_t events, const flight_owner& owner) {
  if (events == 0) return;
  const std::size_t capacity = std::bit_ceil(events);
  storage_ = std::make_unique<flight_storage>(capacity, owner);
  if (!storage_->is_usable()) {
    storage_.reset();
    return;
  }
  words_ = storage_->ring();
  mask_ = capacity - 1;
}

void flight_recorder::add(flight_event what, flight_time at, worker_id peer, std::uint64_t call, std::uint64_t method,
                          std::uint64_t bytes, errc code, std::string_view text) noexcept {
  if (!words_) return;
  std::uint64_t number = 0;
  if (!text.empty()) {
    text = text.substr(0, longest_flight_text);
    std::lock_guard lock(texts_mutex_);
    number = next_text_++;
    flight_text& place = storage_->text(number);
    const std::atomic_ref in_place(place.number);
    in_place.store(0, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // the process may be killed anywhere here
    place.length = static_cast<std::uint32_t>(text.size());
    place.check = flight_text_check(text);
    std::copy(text.begin(), text.end(), place.text.begin());
    in_place.store(number, std::memory_order_release);
  }
  put(what, at, peer, call, method, bytes, code, number);
  if (number != 0 && storage_->in_file()) storage_->calibrate(read_flight_clocks());
}

std::vector<flight_entry> flight_recorder::entries() const {
  std::vector<flight_entry> result;
  if (!words_) return result;
  flight_calendar calendar = calendar_;
  calendar.read();
  storage_->calibrate(calendar.last());
  const std::uint64_t end = count();
  const std::uint64_t begin = end > capacity() ? end - capacity() : 0;
  result.reserve(end - begin);
  std::lock_guard lock(texts_mutex_);
  for (std::uint64_t number = begin; number != end; ++number) {
    std::uint64_t* place = words_ + (number & mask_) * words_per_event;
    flight_words words{};
    for (std::size_t i = 0; i != words.size(); ++i) {
      words[i] = std::atomic_ref(place[i]).load(std::memory_order_relaxed);
    }
    auto entry = flight_entry_of(words, std::atomic_ref(place[words.size()]).load(std::memory_order_relaxed));
    if (!entry || entry->number != number) continue;
    entry->steady_ns = calendar.steady_ns(flight_time::of_raw(words[1]));
    const flight_text& text = storage_->text(words[6]);
    if (words[6] != 0 && text.number == words[6]) entry->text.assign(text.text.data(), text.length);
    result.push_back(std::move(*entry));
  }
  std::sort(result.begin(), result.end(), [](const flight_entry& a, const flight_entry& b) {
    return std::tie(a.steady_ns, a.number) < std::tie(b.steady_ns, b.number);
  });
  return result;
}

void flight_recorder::set_identity(worker_id id, incarnation_id incarnation) noexcept {
  if (!storage_) return;
  storage_->set_identity(id, incarnation);
  if (storage_->in_file()) storage_->calibrate(read_flight_clocks());
}

void flight_recorder::add_peer(worker_id id, std::string_view name) noexcept {
  if (storage_) storage_->add_name(flight_name::peer, static_cast<std::uint64_t>(std::int64_t{id.value}), name);
}

void flight_recorder::remove_file() noexcept {
  if (storage_) storage_->remove_file();
}

void flight_recorder::keep_file() noexcept {
  if (storage_) storage_->keep_file();
}

}  // namespace ferry::inline v0::detail

#include "flow.hpp"

#include <ferry/base/error.hpp>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace ferry::inline v0 {

void flow_limits::check() const {
  const std::pair<std::string_view, std::uint64_t> all[]{
      {"calls_per_peer", calls_per_peer},
      {"calls_per_worker", calls_per_worker},
      {"bytes_per_peer", bytes_per_peer},
      {"bytes_per_worker", bytes_per_worker},
      {"queued_calls_per_peer", queued_calls_per_peer},
      {"queued_calls_per_worker", queued_calls_per_worker},
      {"queued_bytes_per_peer", queued_bytes_per_peer},
      {"queued_bytes_per_worker", queued_bytes_per_worker},
      {"served_calls_per_peer", served_calls_per_peer},
      {"served_calls_per_worker", served_calls_per_worker},
      {"served_bytes_per_peer", served_bytes_per_peer},
      {"served_bytes_per_worker", served_bytes_per_worker},
  };
  for (const auto& [name, value] : all) {
    if (value == 0) {
      throw_error(errc::invalid_argument, fmt::format("flow.{} must be at least 1: nothing could be sent", name));
    }
  }
}

namespace detail {

void unwritten_sum::add(const connection& which) {
  std::lock_guard lock(mutex_);
  all_.push_back(&which);
}

void unwritten_sum::remove(const connection& which) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(all_, &which);
}

std::uint64_t unwritten_sum::bytes() const noexcept {
  std::uint64_t sum = 0;
  std::lock_guard lock(mutex_);
  for (const connection* each : all_) sum += each->unwritten_bytes();
  return sum;
}

send_queue::~send_queue() {
  for (const entry& each : entries_) count(each, false);
}

void send_queue::count(const entry& which, bool in) noexcept {
  const auto change = [in](std::atomic<std::uint64_t>& figure, std::uint64_t by) {
    in ? figure.fetch_add(by) : figure.fetch_sub(by);
  };
  change(flow_.queued_messages, 1);
  change(flow_.queued_bytes, which.bytes);
  if (!which.one_way()) change(flow_.queued_calls, 1);
  bytes_ = in ? bytes_ + which.bytes : bytes_ - which.bytes;
}

void send_queue::check_room(std::uint64_t bytes, const worker_info& peer, std::uint64_t sent_calls,
                            bool pumping) const {
  const flow_limits& limits = flow_.limits;
  const auto refuse = [&](std::uint64_t waiting, std::string_view what, bool of_peer, std::string_view option,
                          std::uint64_t bound) {
    const std::string who =
        of_peer ? fmt::format("to {} already wait to be sent, and {} calls are under way", to_string(peer), sent_calls)
                : fmt::format("of this worker already wait to be sent, and one more is for {}", to_string(peer));
    throw_error(
        errc::resource_exhausted,
        fmt::format("{} {} {}; the bound is flow.{} = {}: wait for results before making further calls, or raise it",
                    waiting, what, who, option, bound));
  };
  const std::uint64_t messages = entries_.size();
  const std::uint64_t all_messages = flow_.queued_messages.load(std::memory_order_relaxed);
  const std::uint64_t all_bytes = flow_.queued_bytes.load(std::memory_order_relaxed);
  const std::uint64_t going_calls = pumping ? limits.calls_per_peer - std::min(limits.calls_per_peer, sent_calls) : 0;
  const std::uint64_t going_bytes = pumping ? limits.bytes_per_peer : 0;
  if (messages >= limits.queued_calls_per_peer + going_calls)
    refuse(messages, "calls", true, "queued_calls_per_peer", limits.queued_calls_per_peer);
  if (messages != 0 && bytes_ + bytes > limits.queued_bytes_per_peer + going_bytes)
    refuse(bytes_, "bytes of calls", true, "queued_bytes_per_peer", limits.queued_bytes_per_peer);
  if (messages >= flow_limits::fair_calls && all_messages >= limits.queued_calls_per_worker)
    refuse(all_messages, "calls", false, "queued_calls_per_worker", limits.queued_calls_per_worker);
  if (messages != 0 && bytes_ + bytes > flow_limits::fair_bytes && all_bytes + bytes > limits.queued_bytes_per_worker)
    refuse(all_bytes, "bytes of calls", false, "queued_bytes_per_worker", limits.queued_bytes_per_worker);
}

send_queue::entries::iterator send_queue::push(outgoing_message&& message, bool soon) {
  entry& added = entries_.emplace_back();
  added.bytes = message.header.message_bytes();
  added.message = std::move(message);
  added.soon = soon;
  count(added, true);
  return std::prev(entries_.end());
}

send_queue::entries send_queue::take(entries::iterator which) noexcept {
  entries taken;
  count(*which, false);
  taken.splice(taken.begin(), entries_, which);
  return taken;
}

send_queue::entries send_queue::take_all() noexcept {
  for (const entry& each : entries_) count(each, false);
  return std::exchange(entries_, {});
}

}  // namespace detail
}  // namespace ferry::inline v0

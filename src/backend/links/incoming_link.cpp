#include "links.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ferry::inline v0::detail {
namespace {

// Only one thread at a time writes it.
void add(std::atomic<std::uint64_t>& figure, std::uint64_t more) noexcept {
  figure.store(figure.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

// Runs a list that is linked by work::next.
void run_all_later(link_owner& owner, work* first) noexcept {
  while (first) owner.run_later(std::exchange(first, first->next));
}

}  // namespace

void incoming_link::start() {
  owner_->on_link_open(peer_, *connection_, false);
  try {
    flow_.replies.add(*connection_);
    connection_->start(shared_from_this());
  } catch (...) {
    flow_.replies.remove(*connection_);
    owner_->on_link_lost(peer_, *connection_);
    throw;
  }
  owner_->note(link_event::kind::accepted, peer_, *connection_);
}

void incoming_link::close(const std::exception_ptr& reason, bool graceful) noexcept {
  if (graceful) send_goodbye(*connection_);
  connection_->close(reason);
}

void incoming_link::on_message(connection& from, inbound_message&& message) noexcept {
  peer_.heard();
  if (message.header.kind == frame_kind::request) {
    if (drops_requests_.load(std::memory_order_relaxed)) return;
    add(served_, 1);
    add(served_bytes_, message.header.held_bytes());
    add(bytes_received_, message.header.message_bytes());
    if (load now = served_now(); to_publish(now) || excess_of(now, 1) != excess::none) {
      std::lock_guard lock(mutex_);
      publish(now = served_now());
      if (!closed_ && !paused_) {
        const excess why = excess_of(now, 1);
        if (why != excess::none) pause();
        if (why == excess::shared) look_again_soon();
      }
    }
    return handler_.on_request(shared_from_this(), peer_.who, std::move(message));
  }
  if (message.header.kind == frame_kind::control) return owner_->on_control(peer_, std::move(message));
  if (message.header.kind == frame_kind::cancel) return cancel(message.header.call_id);
  from.close(make_error(errc::protocol_error, fmt::format("{} sent a frame of kind {} as a caller", from.description(),
                                                          static_cast<int>(message.header.kind))));
}

void incoming_link::cancel(std::uint64_t call_id) noexcept {
  work* stop = nullptr;
  {
    std::lock_guard lock(mutex_);
    if (stoppable** found = find_running(call_id)) stop = (*found)->begin_stop();
  }
  if (stop) owner_->run_later(stop);
}

void incoming_link::on_closed(connection& which, std::exception_ptr reason) noexcept {
  flow_.replies.remove(which);
  work* stops = nullptr;
  std::vector<held_handler> held;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    if (std::exchange(paused_, false)) flow_.paused_links.fetch_sub(1);
    release(held);
    const auto stop = [&](stoppable& call) {
      if (work* item = call.begin_stop()) item->next = std::exchange(stops, item);
    };
    for (auto& [id, call] : running_) {
      if (call) stop(*call);
    }
    for (auto& [id, call] : others_running_) stop(*call);
    running_.clear();
    others_running_.clear();
    owner_->count_handled(-std::exchange(handled_, 0));
  }
  run_all_later(*owner_, stops);
  for (const auto& [item, on] : held) on->post(item);
  owner_->note(link_event::kind::lost, peer_, which, reason);
  owner_->on_link_lost(peer_, which);
  owner_->on_link_closed(this);
}

// ---------------------------------------------------------------- bounds

incoming_link::load incoming_link::served_now() const noexcept {
  // All of these only grow. Reads the ended ones first, so that they never exceed the received ones.
  const std::uint64_t ended = ended_.load(std::memory_order_acquire);
  const std::uint64_t ended_bytes = ended_bytes_.load(std::memory_order_acquire);
  return {served_.load(std::memory_order_relaxed) - ended, served_bytes_.load(std::memory_order_relaxed) - ended_bytes};
}

incoming_link::excess incoming_link::excess_of(const load& own, std::uint64_t times) const noexcept {
  const flow_limits& limits = flow_.limits;
  const load part{own.calls * times, own.bytes * times};
  if (own.calls == 0) return excess::none;
  if (part.calls >= limits.served_calls_per_peer || part.bytes >= limits.served_bytes_per_peer) return excess::own;
  if (part.calls <= flow_limits::fair_calls && part.bytes <= flow_limits::fair_bytes) return excess::none;
  const bool full = flow_.served.calls.load(std::memory_order_relaxed) * times >= limits.served_calls_per_worker ||
                    flow_.served.bytes.load(std::memory_order_relaxed) * times >= limits.served_bytes_per_worker;
  return full ? excess::shared : excess::none;
}

bool incoming_link::to_publish(const load& own) const noexcept {
  const auto apart = [](std::uint64_t a, std::uint64_t b) { return a > b ? a - b : b - a; };
  const std::uint64_t calls = published_.load(std::memory_order_relaxed);
  const std::uint64_t bytes = published_bytes_.load(std::memory_order_relaxed);
  return apart(own.calls, calls) > load_sum::calls_step || apart(own.bytes, bytes) > load_sum::bytes_step ||
         (own.calls == 0 && calls + bytes != 0);
}

void incoming_link::publish(const load& own) noexcept {
  flow_.served.calls.fetch_add(own.calls - published_.exchange(own.calls, std::memory_order_relaxed));
  flow_.served.bytes.fetch_add(own.bytes - published_bytes_.exchange(own.bytes, std::memory_order_relaxed));
}

void incoming_link::pause() noexcept {
  paused_ = true;
  flow_.paused_links.fetch_add(1);
  connection_->pause_reading();
}

void incoming_link::handled(std::uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  ended_.store(ended_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  ended_bytes_.store(ended_bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  const load now = served_now();
  if (to_publish(now)) publish(now);
  if (closed_) return;
  ++handled_;
  owner_->count_handled(1);
  resume_if_less();
}

// Resumes at half of the bounds, so that reading starts and stops less often. If the link's own requests exceed the
// bounds, the end of one of them resumes it; if those of other links do, their ends do not notify this link, so it
// polls.
void incoming_link::resume_if_less() noexcept {
  if (!paused_) return;
  switch (excess_of(served_now(), 2)) {
    case excess::own: return;
    case excess::shared: return look_again_soon();
    case excess::none: break;
  }
  paused_ = false;
  flow_.paused_links.fetch_sub(1);
  connection_->resume_reading();
}

void incoming_link::look_again_soon() noexcept {
  waits_for_others_.store(true, std::memory_order_relaxed);
  owner_->look_again_soon();
}

void incoming_link::look_again() noexcept {
  const std::lock_guard lock(mutex_);
  waits_for_others_.store(false, std::memory_order_relaxed);
  resume_if_less();
}

// More answers are unwritten than allowed: the caller does not read them.
bool incoming_link::congested() const noexcept {
  const std::uint64_t unwritten = connection_->unwritten_bytes();
  return unwritten >= flow_.limits.bytes_per_peer ||
         (unwritten > flow_limits::fair_bytes && flow_.replies.bytes() >= flow_.limits.bytes_per_worker);
}

bool incoming_link::may_begin(work& item, executor& on) noexcept {
  if (!congested()) return true;
  std::lock_guard lock(mutex_);
  if (closed_) return true;
  try {
    held_.push_back({&item, &on});
  } catch (const std::bad_alloc&) {
    return true;
  }
  if (held_.size() == 1 && !connection_->tell_when_written(connection_->unwritten_bytes() / 2)) {
    held_.clear();
    return true;
  }
  flow_.held_handlers.fetch_add(1);
  return false;
}

// Call with mutex_ held; post the result without it.
void incoming_link::release(std::vector<held_handler>& held) noexcept {
  held.swap(held_);
  flow_.held_handlers.fetch_sub(held.size());
}

void incoming_link::on_written(connection&) noexcept {
  std::vector<held_handler> held;
  {
    std::lock_guard lock(mutex_);
    release(held);
  }
  for (const auto& [item, on] : held) on->post(item);
}

void incoming_link::reply(std::uint64_t call_id, outgoing_message&& answer) {
  answer.header.call_id = call_id;
  answer.finish();
  check_carries(*connection_, answer);
  bytes_sent_.fetch_add(answer.header.message_bytes(), std::memory_order_relaxed);
  connection_->send(std::move(answer));
}

void incoming_link::visit_requests(const agent_inspection::request_visitor& visit) const {
  std::lock_guard lock(mutex_);  // keeps the calls alive: each is removed before it ends
  for (const auto& [id, call] : running_) {
    if (call) visit(peer_.who, id, *call);
  }
  for (const auto& [id, call] : others_running_) visit(peer_.who, id, *call);
}

void incoming_link::add_traffic(peer_traffic& sum) const noexcept {
  sum.served += served_.load(std::memory_order_relaxed);
  sum.bytes_sent += bytes_sent_.load(std::memory_order_relaxed);
  sum.bytes_received += bytes_received_.load(std::memory_order_relaxed);
}

void incoming_link::begin_call(std::uint64_t call_id, stoppable& running) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_) {
      const auto slot = static_cast<std::uint32_t>(call_id);
      if (slot < dense_slots) {
        if (slot >= running_.size()) running_.resize(slot + 1);
        if (!running_[slot].call) {
          running_[slot] = {call_id, &running};
          return;
        }
      }
      others_running_.emplace(call_id, &running);
      return;
    }
  }
  running.request_stop();
}

void incoming_link::end_call(std::uint64_t call_id, const stoppable& ended) noexcept {
  std::lock_guard lock(mutex_);
  const auto slot = static_cast<std::uint32_t>(call_id);
  if (slot < running_.size() && running_[slot].call == &ended) {
    running_[slot].call = nullptr;
    return;
  }
  const auto [first, last] = others_running_.equal_range(call_id);
  const auto found = std::find_if(first, last, [&](const auto& each) { return each.second == &ended; });
  if (found != last) others_running_.erase(found);
}

stoppable** incoming_link::find_running(std::uint64_t call_id) noexcept {
  const auto slot = static_cast<std::uint32_t>(call_id);
  if (slot < running_.size() && running_[slot].call && running_[slot].id == call_id) return &running_[slot].call;
  const auto found = others_running_.find(call_id);
  return found == others_running_.end() ? nullptr : &found->second;
}

}  // namespace ferry::inline v0::detail

#include "links.hpp"

#include <ferry/base/log.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "../../base/coarse_clock.hpp"
#include "../../base/peer_log.hpp"
#include "../../transport/reactor/held_output.hpp"
#include "../../wire/send_limits.hpp"

namespace ferry::inline v0 {

std::string_view to_string(call_phase phase) noexcept {
  switch (phase) {
    case call_phase::connecting: return "connecting";
    case call_phase::queued: return "queued behind the calls that are under way";
    case call_phase::waiting_for_reply: break;
  }
  return "waiting for the reply";
}

std::string_view to_string(member_event::kind kind) noexcept {
  switch (kind) {
    case member_event::kind::joined: return "joined";
    case member_event::kind::left: return "left";
    case member_event::kind::lost: return "lost";
    case member_event::kind::fenced: return "fenced";
  }
  return "unknown";
}

namespace detail {
namespace {

std::string close_reason(const std::exception_ptr& reason) {
  try {
    std::rethrow_exception(reason);
  } catch (const error& e) {
    return std::string(e.message());
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown reason";
  }
}

}  // namespace

void link_owner::note(link_event::kind what, const remote_worker& peer, const connection& which,
                      const std::exception_ptr& reason) noexcept {
  try {
    const std::string route = which.description();
    on_link_event({what, peer.who, reason ? fmt::format("{}: {}", route, close_reason(reason)) : route});
  } catch (const std::exception& e) {
    log_about(peer.who.id(), log_level::warning,
              [&] { return std::string("an event of a connection was not recorded: ") + e.what(); });
  }
}

channel_path path_between(const connection& route, device from, device to) noexcept {
  const bool carries = route.carries_device_tensors();
  return {from,
          to,
          route.same_process(),
          carries,
          carries ? std::string_view() : route.why_no_device_tensors(),
          route.why_not_direct(from, to)};
}

void check_takes(const remote_worker& peer, const outgoing_message& message) {
  const std::shared_ptr<const wire_limits> limits = peer.limits ? peer.limits->get() : nullptr;
  if (limits) check_to_send("the request", message, *limits, peer.who.name());
}

void check_carries(const connection& route, const outgoing_message& message) {
  if (!message.on_devices()) return;
  for (std::size_t i = 0; i != message.tensors.size(); ++i) {
    const device target = message.targets.empty() ? device() : message.targets[i];
    const device source = message.tensors[i].device();
    if (source.is_cpu() && target.is_cpu()) continue;
    const channel_path path = path_between(route, source, target);
    if (find_channel(path)) continue;
    if (route.carries_device_tensors()) {
      throw_error(
          errc::bad_device,
          fmt::format("tensor {} of the message is on {} and is to arrive on {}: {}, or copy it before it is sent", i,
                      to_string(source), to_string(target), channel_traits<inproc_tensors>::unusable(path)));
    }
    throw_error(errc::bad_device,
                fmt::format("tensor {} of the message is on {} and is to arrive on {}, but the connection to {} has no "
                            "channel for it ({}): copy it to the CPU before it is sent, and map no device to or from "
                            "the CPU, or let both workers run in one process",
                            i, to_string(source), to_string(target), route.description(), path.obstacle));
  }
}

// ---------------------------------------------------------------- outgoing_link

void outgoing_link::opened(std::shared_ptr<connection> connection) {
  owner_->on_link_open(peer_, *connection, true);
  try {
    flow_.requests.add(*connection);
    connection->start(shared_from_this());
  } catch (...) {
    flow_.requests.remove(*connection);
    owner_->on_link_lost(peer_, *connection);
    throw;
  }
  owner_->note(link_event::kind::opened, peer_, *connection);
  {
    std::lock_guard lock(mutex_);
    connection_ = connection;
    open_.store(true, std::memory_order_release);
  }
  pump();
  connection->keep_watched();
  if (closed()) {
    if (owner_->closing()) send_goodbye(*connection);
    connection->close(make_error(errc::shutting_down, "the worker was closed while it connected"));
  }
}

// ---------------------------------------------------------------- bounds

// Whether one more call may be under way. With `counted` the worker has already counted it.
bool outgoing_link::may_begin_call(bool counted) const noexcept {
  const flow_limits& limits = flow_.limits;
  const std::uint64_t own = under_way_.load(std::memory_order_relaxed);
  if (own >= limits.calls_per_peer) return false;
  return own < flow_limits::fair_calls || flow_.sent_calls() < limits.calls_per_worker + (counted ? 1 : 0);
}

// Whether a message of this many bytes may be sent now.
bool outgoing_link::may_send(std::uint64_t bytes, bool is_call, bool counted) const noexcept {
  if (!open_.load(std::memory_order_relaxed)) return false;
  if (is_call && !may_begin_call(counted)) return false;
  const flow_limits& limits = flow_.limits;
  const std::uint64_t unwritten = connection_->unwritten_bytes();
  if (unwritten == 0) return true;
  if (unwritten + bytes > limits.bytes_per_peer) return false;
  return unwritten + bytes <= flow_limits::fair_bytes || flow_.requests.bytes() + bytes <= limits.bytes_per_worker;
}

// The first message in the queue could not be sent: ensures that pump() is called once more has been written. False if
// that has happened meanwhile. If the bound on calls is exceeded, the end of one of this link's calls runs pump(). Ends
// of calls of other links, which only count beyond fair_calls, do not: the link polls.
bool outgoing_link::wait_for_room() noexcept {
  const std::uint64_t unwritten = connection_->unwritten_bytes();
  if (unwritten != 0) return connection_->tell_when_written(unwritten / 2);
  if (queue_.front().one_way() || may_begin_call(false)) return false;
  if (under_way_.load(std::memory_order_relaxed) < flow_.limits.calls_per_peer) {
    waits_for_others_.store(true, std::memory_order_relaxed);
    owner_->look_again_soon();
  }
  return true;
}

void outgoing_link::look_again() noexcept {
  waits_for_others_.store(false, std::memory_order_relaxed);
  pump();
}

// The time that a call has waited in the queue is subtracted from the callee's timeout.
void outgoing_link::begin_sending(send_queue::entry& next) noexcept {
  frame_header& request = next.message.header;
  if (next.one_way()) return;
  slot& place = slots_[static_cast<std::uint32_t>(request.call_id)];
  place.queued = false;
  under_way_.store(under_way_.load(std::memory_order_relaxed) + 1);
  if (place.until.is_never()) return;
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(place.until.remaining()).count();
  request.timeout_us = left > 1 ? static_cast<std::uint64_t>(left) : 1;
  request.encode(next.message.bytes.data());
}

// A call that was held back without being watched is being written.
void outgoing_link::watch_if_unwatched() noexcept {
  if (unwatched_.load(std::memory_order_relaxed) && unwatched_.exchange(false)) connection_->keep_watched();
}

// Sends what may be sent of what is queued. Call without mutex_: destroys what was written, which may run user
// deleters.
void outgoing_link::pump() noexcept {
  bool sent = false;
  for (bool mine = false;;) {
    send_queue::entries next;
    std::vector<outgoing_message> extras;
    {
      std::lock_guard lock(mutex_);
      if (!mine && (pumping_ || !open_.load(std::memory_order_relaxed))) return;
      mine = pumping_ = true;
      extras.swap(extras_);
      if (closed()) extras.clear();
      if (!queue_.empty() && may_send(queue_.front().bytes, !queue_.front().one_way(), false)) {
        next = queue_.take_front();
        begin_sending(next.front());
      } else if (extras.empty() && (queue_.empty() || wait_for_room())) {
        pumping_ = false;
        break;
      }
    }
    for (outgoing_message& each : extras) connection_->send(std::move(each));
    if (refuse_unsendable(next)) continue;
    for (send_queue::entry& each : next) {
      if (!each.one_way()) {
        owner_->on_link_event({link_event::kind::sent, peer_.who, {}, each.message.header.call_id});
      }
      if (each.soon) {
        connection_->send_soon(std::move(each.message));
      } else {
        connection_->send(std::move(each.message));
      }
    }
    sent = true;
  }
  if (sent) connection_->keep_watched();
}

// It was queued before it was known over which connection it would go.
bool outgoing_link::refuse_unsendable(send_queue::entries& next) noexcept {
  if (next.empty()) return false;
  const outgoing_message& message = next.front().message;
  std::string refusal;
  try {
    check_carries(*connection_, message);
    return false;
  } catch (const std::exception& e) {
    const auto* own = dynamic_cast<const error*>(&e);
    refusal = own ? std::string(own->message()) : e.what();
  }
  const bool one_way = next.front().one_way();
  pending_call* refused = nullptr;
  {
    std::lock_guard lock(mutex_);
    send_queue::entries none;
    if (!one_way) refused = take(message.header.call_id, none);
    if (!closed()) {
      ++errors_;
      bytes_sent_ -= next.front().bytes;
      --sent_;
      owner_->count_sent(-1);
    }
  }
  if (refused) {
    refused->on_failure(errc::bad_device, call_phase::queued, refusal);
  } else if (one_way) {
    log_about(peer_.who.id(), log_level::error,
              [&] { return fmt::format("a notification to {} was not sent: {}", to_string(peer_.who), refusal); });
  }
  return true;
}

// ---------------------------------------------------------------- calls

std::uint32_t outgoing_link::free_slot() {
  if (free_slots_ == no_slot) {
    slot& fresh = slots_.emplace_back();
    fresh.next_free = no_slot;
    fresh.use = first_use_;
    free_slots_ = static_cast<std::uint32_t>(slots_.size() - 1);
  }
  return free_slots_;
}

bool outgoing_link::call(outgoing_message& request, pending_call& call, deadline until, reply_wait how,
                         std::uint64_t& id) {
  if (refuses_) {
    id = 0;
    call.on_failure(refusal_, call_phase::connecting, refusal_text_);
    return true;
  }
  check_takes(peer_, request);
  request.finish();
  if (open_.load(std::memory_order_acquire)) check_carries(*connection_, request);
  call.method = request.header.method;
  call.bytes = request.header.message_bytes();
  bool direct = false;
  bool room = false;
  {
    std::lock_guard lock(mutex_);
    if (closed()) return false;
    const std::uint32_t index = free_slot();
    slot& place = slots_[index];
    id = (std::uint64_t{place.use} << 32U) | index;
    request.header.call_id = id;
    request.header.encode(request.bytes.data());
    direct = queue_.empty() && !pumping_ && may_send(call.bytes, true, true);
    if (direct) {
      under_way_.store(under_way_.load(std::memory_order_relaxed) + 1);
    } else {
      queue_.check_room(call.bytes, peer_.who, under_way_.load(), pumping_);
      place.queued_at = queue_.push(std::move(request), how == reply_wait::none || how == reply_wait::bundled);
      place.queued = true;
      room = !pumping_ && open_.load() && !wait_for_room();
    }
    free_slots_ = place.next_free;
    place.call = &call;
    call.call_id = id;
    place.until = until;
    ++sent_;
    ++calls_;
    bytes_sent_ += call.bytes;
    owner_->count_sent(1);  // before it can be handled
  }
  bool held = false;
  if (direct) {
    held = send_call(std::move(request), how);
  } else {
    held_output::release();
    if (room) pump();
  }
  if (how != reply_wait::at_once && !until.is_never()) owner_->check_deadlines_at(until);
  const bool to_watch = how == reply_wait::none || how == reply_wait::bundled;
  if (to_watch && !held && open_.load(std::memory_order_acquire)) connection_->keep_watched();
  return true;
}

// True: it is held back, and the connection is not watched for its reply.
bool outgoing_link::send_call(outgoing_message&& request, reply_wait how) noexcept {
  switch (how) {
    case reply_wait::bundled: {
      unwatched_.store(true);  // before another thread may write it
      const bool held = connection_->send_with_next(std::move(request));
      if (!held) unwatched_.store(false);
      return held;
    }
    case reply_wait::at_once:  // its sender reads the connection, and has it watched when it stops
      connection_->send(std::move(request));
      unwatched_.store(false, std::memory_order_relaxed);
      return false;
    case reply_wait::unhurried:
      connection_->send(std::move(request));
      watch_if_unwatched();
      return false;
    case reply_wait::none: connection_->send_soon(std::move(request)); break;
  }
  unwatched_.store(false, std::memory_order_relaxed);
  return false;
}

bool outgoing_link::over_limit(std::uint64_t bytes) const noexcept {
  const std::lock_guard lock(mutex_);
  if (!open_.load(std::memory_order_relaxed)) return queue_.size() >= flow_.limits.calls_per_peer;
  return !(queue_.empty() && !pumping_ && may_send(bytes, true, true));
}

bool outgoing_link::notify(outgoing_message& request) {
  if (refuses_) {
    throw_error(refusal_, fmt::format("a one-way call to {} was not sent: {}", to_string(peer_.who), refusal_text_));
  }
  check_takes(peer_, request);
  request.finish();
  if (open_.load(std::memory_order_acquire)) check_carries(*connection_, request);
  const std::uint64_t bytes = request.header.message_bytes();
  bool direct = false;
  bool room = false;
  {
    std::lock_guard lock(mutex_);
    if (closed()) return false;
    direct = queue_.empty() && !pumping_ && may_send(bytes, false, false);
    if (!direct) {
      queue_.check_room(bytes, peer_.who, under_way_.load(), pumping_);
      queue_.push(std::move(request), true);
      room = !pumping_ && open_.load() && !wait_for_room();
    }
    ++sent_;
    ++calls_;
    bytes_sent_ += bytes;
    owner_->count_sent(1);
  }
  if (direct) {
    connection_->send_soon(std::move(request));
    watch_if_unwatched();
  } else {
    held_output::release();
    if (room) pump();
  }
  return true;
}

// `unsent` is its message if it was never sent.
pending_call* outgoing_link::take(std::uint64_t id, send_queue::entries& unsent, deadline* until) noexcept {
  const auto index = static_cast<std::uint32_t>(id);
  if (index >= slots_.size()) return nullptr;
  slot& place = slots_[index];
  if (!place.call || place.use != static_cast<std::uint32_t>(id >> 32U)) return nullptr;
  if (std::exchange(place.queued, false)) {
    unsent = queue_.take(place.queued_at);
  } else {
    under_way_.store(under_way_.load(std::memory_order_relaxed) - 1);
  }
  if (until) *until = place.until;
  ++place.use;
  if (place.use == 0) place.use = 1;
  place.next_free = std::exchange(free_slots_, index);
  return std::exchange(place.call, nullptr);
}

void outgoing_link::note_abandoned(const pending_call& call) noexcept {
  const std::pair what(call.call_id, call.method);
  try {
    if (abandoned_.size() < most_abandoned) return (void)abandoned_.emplace_back(what);
  } catch (const std::bad_alloc&) {
    if (abandoned_.empty()) return;
  }
  abandoned_[next_abandoned_++ % abandoned_.size()] = what;
}

// 0: many others were given up since.
std::uint64_t outgoing_link::method_of_abandoned(std::uint64_t id) const noexcept {
  const auto found =
      std::find_if(abandoned_.begin(), abandoned_.end(), [&](const auto& each) { return each.first == id; });
  return found == abandoned_.end() ? 0 : found->second;
}

bool outgoing_link::abandon(std::uint64_t id, call_phase& phase, bool tell_peer) noexcept {
  send_queue::entries unsent;  // destroyed without the lock: tensors may run deleters of users
  bool waiting = false;
  {
    std::lock_guard lock(mutex_);
    const pending_call* const given_up = take(id, unsent);
    if (!given_up) return false;
    if (unsent.empty()) note_abandoned(*given_up);
    ++errors_;
    waiting = !queue_.empty();
    phase = unsent.empty() ? call_phase::waiting_for_reply : unsent_phase();
    if (!unsent.empty()) {  // the peer has no record of it
      bytes_sent_ -= unsent.front().bytes;
      --sent_;
      owner_->count_sent(-1);
    }
  }
  if (unsent.empty() && tell_peer) send_cancel(id);
  if (waiting) pump();
  return true;
}

void outgoing_link::send_cancel(std::uint64_t id) noexcept {
  owner_->on_cancel(peer_, id);
  try {
    outgoing_message cancel;
    cancel.header.kind = frame_kind::cancel;
    cancel.header.call_id = id;
    cancel.finish();
    {
      std::lock_guard lock(mutex_);
      if (closed()) return;
      if (pumping_) return extras_.push_back(std::move(cancel));  // it must not overtake its request
    }
    connection_->send(std::move(cancel));
  } catch (const std::exception& e) {
    log_about(peer_.who.id(), log_level::warning,
              [&] { return fmt::format("a cancellation to {} was not sent: {}", to_string(peer_.who), e.what()); });
  }
}

bool outgoing_link::wait(const drive_condition& condition, deadline until) noexcept {
  if (!open_.load(std::memory_order_acquire)) return false;
  return connection_->drive(condition, until);
}

void outgoing_link::interrupt() noexcept {
  if (open_.load(std::memory_order_acquire)) connection_->interrupt_drive();
}

deadline outgoing_link::expire(clock::time_point now) noexcept {
  std::vector<std::pair<std::uint64_t, pending_call*>> expired;
  deadline earliest;
  {
    std::lock_guard lock(mutex_);
    for (std::uint32_t index = 0; index != slots_.size(); ++index) {
      slot& place = slots_[index];
      if (!place.call || place.until.is_never()) continue;
      if (place.until.at() <= now) {
        expired.emplace_back((std::uint64_t{place.use} << 32U) | index, place.call);
      } else if (place.until < earliest) {
        earliest = place.until;
      }
    }
  }
  for (auto [id, call] : expired) {
    call_phase phase{};
    if (abandon(id, phase, true)) call->on_failure(errc::rpc_timeout, phase, "");
  }
  return earliest;
}

std::shared_ptr<connection> outgoing_link::current_connection() const {
  std::lock_guard lock(mutex_);
  return connection_;
}

void outgoing_link::end_all(errc code, const std::string& detail) noexcept {
  std::vector<std::pair<pending_call*, call_phase>> ended;
  send_queue::entries unsent;  // destroyed without the lock: tensors may run deleters of users
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    owner_->count_sent(-std::exchange(sent_, 0));
    for (std::uint32_t index = 0; index != slots_.size(); ++index) {
      if (!slots_[index].call) continue;
      const call_phase phase = slots_[index].queued ? unsent_phase() : call_phase::waiting_for_reply;
      send_queue::entries own;
      ended.emplace_back(take((std::uint64_t{slots_[index].use} << 32U) | index, own), phase);
      unsent.splice(unsent.end(), own);
    }
    unsent.splice(unsent.end(), queue_.take_all());
    errors_ += ended.size();
    for (const send_queue::entry& each : unsent) bytes_sent_ -= each.bytes;
  }
  for (const auto& [call, phase] : ended) call->on_failure(code, phase, detail);
}

void outgoing_link::fail(errc code, const std::string& detail) noexcept {
  end_all(code, detail);
  if (!current_connection()) owner_->on_link_closed(this);
}

void outgoing_link::close(errc code, const std::exception_ptr& reason, bool graceful) noexcept {
  end_all(code, close_reason(reason));
  if (auto connection = current_connection()) {
    if (graceful) send_goodbye(*connection);
    connection->close(reason);
  } else {
    owner_->on_link_closed(this);  // if the attempt to connect succeeds later, opened() closes the connection
  }
}

void outgoing_link::send_control(outgoing_message&& message, bool later) noexcept {
  if (later) {
    const std::lock_guard lock(mutex_);
    if (!open_.load(std::memory_order_relaxed)) {
      try {
        if (!closed()) extras_.push_back(std::move(message));
      } catch (const std::bad_alloc&) {
        log(log_level::warning, "out of memory: a control frame was dropped before its connection was open");
      }
      return;
    }
  }
  if (open_.load(std::memory_order_acquire)) connection_->send(std::move(message));
}

void outgoing_link::on_message(connection& from, inbound_message&& message) noexcept {
  peer_.heard();
  const frame_kind kind = message.header.kind;
  if (kind == frame_kind::control) return owner_->on_control(peer_, std::move(message));
  if (kind != frame_kind::reply && kind != frame_kind::exception && kind != frame_kind::failure) {
    from.close(make_error(errc::protocol_error, fmt::format("{} sent a frame of kind {} as a callee",
                                                            from.description(), static_cast<int>(kind))));
    return;
  }
  pending_call* call = nullptr;
  send_queue::entries unsent;  // of a call that a peer answers before it was sent
  bool waiting = false;
  std::uint64_t late_method = 0;
  deadline until;
  bool late = false;
  {
    std::lock_guard lock(mutex_);
    call = take(message.header.call_id, unsent, &until);
    if (!call) late_method = method_of_abandoned(message.header.call_id);
    waiting = !queue_.empty();
    bytes_received_ += message.header.message_bytes();
    // A handler may answer because its deadline, which is the caller's, has passed. The timer is not that quick.
    late = call && may_have_expired(until) && (message.arrived = message.arrival()) > until.at();
    if (call && (late || kind != frame_kind::reply)) ++errors_;
    if (!unsent.empty()) {
      --sent_;
      owner_->count_sent(-1);
    }
  }
  if (late) {
    late_method = call->method;
    call->on_failure(errc::rpc_timeout, call_phase::waiting_for_reply, "");
  } else if (call) {
    call->on_reply(std::move(message));
  }
  if (!call || late) {
    owner_->count_late_reply();
    owner_->on_link_event({.what = link_event::kind::late_reply,
                           .who = peer_.who,
                           .text = {},
                           .call_id = message.header.call_id,
                           .method = late_method,
                           .bytes = message.header.message_bytes()});
  }
  if (waiting) pump();
}

void outgoing_link::list_calls(std::vector<open_call>& calls) const {
  std::lock_guard lock(mutex_);
  if (under_way_.load() == 0 && queue_.empty()) return;
  const bool open = open_.load();
  const std::string transport(open ? connection_->transport_name() : "");
  const std::string route = open ? connection_->description() : "";
  for (const slot& each : slots_) {
    // A call in a slot has not been completed: its owner keeps it alive until it is removed from the slot.
    if (!each.call) continue;
    calls.push_back({.id = each.call->call_id,
                     .method = each.call->method,
                     .peer = peer_.who,
                     .phase = each.queued ? unsent_phase() : call_phase::waiting_for_reply,
                     .began = each.call->began,
                     .until = each.until,
                     .bytes = each.call->bytes,
                     .transport = transport,
                     .route = route});
  }
}

void outgoing_link::add_traffic(peer_traffic& sum) const noexcept {
  std::lock_guard lock(mutex_);
  sum.calls += calls_;
  sum.errors += errors_;
  sum.bytes_sent += bytes_sent_;
  sum.bytes_received += bytes_received_;
}

void outgoing_link::on_closed(connection& which, std::exception_ptr reason) noexcept {
  owner_->note(link_event::kind::lost, peer_, which, reason);
  flow_.requests.remove(which);
  end_all(owner_->closing() ? errc::shutting_down : errc::peer_lost, close_reason(reason));
  owner_->on_link_lost(peer_, which);
  owner_->on_link_closed(this);
}

}  // namespace detail
}  // namespace ferry::inline v0

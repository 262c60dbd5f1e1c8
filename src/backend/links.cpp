#include "links.hpp"

#include <ferry/base/log.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ferry::inline v0 {

std::string_view to_string(call_phase phase) noexcept {
  return phase == call_phase::connecting ? "connecting" : "waiting for the reply";
}

std::string_view to_string(member_event::kind kind) noexcept {
  switch (kind) {
    case member_event::kind::left: return "left";
    case member_event::kind::lost: return "lost";
    case member_event::kind::fenced: return "fenced";
  }
  return "unknown";
}

namespace detail {
namespace {

std::string text_of(const std::exception_ptr& reason) {
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

// Of a connection that opened, or (with a reason) was lost.
void note(link_owner& owner, link_event::kind what, const remote_worker& peer, const connection& which,
          const std::exception_ptr& reason = nullptr) noexcept {
  try {
    const std::string route = which.description();
    owner.on_link_event({what, peer.who, reason ? fmt::format("{}: {}", route, text_of(reason)) : route});
  } catch (const std::exception& e) {
    log(log_level::warning, std::string("an event of a connection was not recorded: ") + e.what());
  }
}

// Only the thread of the moment writes it.
void add(std::atomic<std::uint64_t>& figure, std::uint64_t more) noexcept {
  figure.store(figure.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

// Stops calls: marks them at once, and runs the callbacks of users on another thread; drops a reference to each.
void stop_later(link_owner& owner, std::vector<stoppable*> calls) {
  struct stopping : work {
    std::vector<stoppable*> calls;
  };
  if (calls.empty()) return;
  for (stoppable* call : calls) call->mark_stopped();
  auto* item = new stopping;
  item->calls = std::move(calls);
  item->run = [](work* self) noexcept {
    const std::unique_ptr<stopping> owned(static_cast<stopping*>(self));
    for (stoppable* call : owned->calls) {
      call->request_stop();
      call->drop_reference();
    }
  };
  owner.run_later(item);
}

}  // namespace

// ---------------------------------------------------------------- outgoing_link

void outgoing_link::opened(std::shared_ptr<connection> connection) {
  owner_->on_link_open(peer_, *connection, true);
  try {
    connection->start(shared_from_this());
  } catch (...) {
    owner_->on_link_lost(peer_, *connection);
    throw;
  }
  note(*owner_, link_event::kind::opened, peer_, *connection);
  {
    std::lock_guard lock(mutex_);
    connection_ = connection;
  }
  for (;;) {
    std::vector<outgoing_message> waiting;
    {
      std::lock_guard lock(mutex_);
      if (waiting_.empty()) {
        open_.store(true, std::memory_order_release);
        break;
      }
      waiting.swap(waiting_);
      for (auto& message : waiting) shorten_timeout(message.header, message.bytes);
    }
    for (auto& message : waiting) {
      if (message.header.kind == frame_kind::request) {
        owner_->on_link_event({link_event::kind::sent, peer_.who, {}, message.header.call_id});
      }
      connection->send(std::move(message));
    }
  }
  connection->keep_watched();
  if (closed()) {
    if (owner_->closing()) say_farewell(*connection);
    connection->close(make_error(errc::shutting_down, "the worker was closed while it connected"));
  }
}

// What the caller has waited for the connection is not left to the callee. With mutex_ held.
void outgoing_link::shorten_timeout(frame_header& request, byte_buffer& bytes) const noexcept {
  if (request.kind != frame_kind::request || (request.flags & (frame_one_way | frame_no_deadline)) != 0) return;
  const slot& place = slots_[static_cast<std::uint32_t>(request.call_id)];
  if (!place.call || place.call->call_id != request.call_id) return;  // given up: the cancellation follows
  const auto left = std::chrono::duration_cast<std::chrono::microseconds>(place.until.remaining()).count();
  request.timeout_us = left > 1 ? static_cast<std::uint64_t>(left) : 1;
  request.encode(bytes.data());
}

void outgoing_link::send(outgoing_message&& message, bool soon) noexcept {
  if (!open_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    if (closed()) return;
    if (!open_.load(std::memory_order_acquire)) {
      waiting_.push_back(std::move(message));
      return;
    }
  }
  if (soon) {
    connection_->send_soon(std::move(message));
  } else {
    connection_->send(std::move(message));
  }
}

bool outgoing_link::call(outgoing_message& request, pending_call& call, deadline until, bool driven,
                         std::uint64_t& id) {
  if (refuses_) {
    id = 0;
    call.on_failure(refusal_, call_phase::connecting, refusal_text_);
    return true;
  }
  call.method = request.header.method;
  call.bytes = request.size();
  {
    std::lock_guard lock(mutex_);
    if (closed()) return false;
    if (free_slots_ == no_slot) {
      slots_.emplace_back().next_free = no_slot;
      free_slots_ = static_cast<std::uint32_t>(slots_.size() - 1);
    }
    slot& place = slots_[free_slots_];
    id = (std::uint64_t{place.use} << 32U) | free_slots_;
    free_slots_ = place.next_free;
    place.call = &call;
    call.call_id = id;
    place.until = until;
    pending_count_.fetch_add(1);
    ++sent_;
    ++calls_;
    bytes_sent_ += call.bytes;
    owner_->count_sent(1);  // before it can be handled
  }
  request.header.call_id = id;
  try {
    request.finish();
  } catch (...) {
    uncount(call.bytes);
    call_phase ignored{};
    if (abandon(id, ignored, false)) throw;
    return true;  // the link was closed meanwhile, which has ended the call
  }
  send(std::move(request), !driven);
  if (!driven) {
    if (!until.is_never()) owner_->check_deadlines_at(until);
    if (open_.load(std::memory_order_acquire)) connection_->keep_watched();
  }
  return true;
}

bool outgoing_link::notify(outgoing_message& request) {
  if (refuses_) throw_error(refusal_, refusal_text_);
  if (closed()) return false;
  request.finish();
  {
    std::lock_guard lock(mutex_);
    if (closed()) return false;
    ++sent_;
    ++calls_;
    bytes_sent_ += request.size();
    owner_->count_sent(1);
  }
  send(std::move(request), true);
  return true;
}

void outgoing_link::uncount(std::uint64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  bytes_sent_ -= bytes;
  if (closed()) return;
  --sent_;
  owner_->count_sent(-1);
}

pending_call* outgoing_link::take(std::uint64_t id) noexcept {
  const auto index = static_cast<std::uint32_t>(id);
  if (index >= slots_.size()) return nullptr;
  slot& place = slots_[index];
  if (!place.call || place.use != static_cast<std::uint32_t>(id >> 32U)) return nullptr;
  ++place.use;
  if (place.use == 0) place.use = 1;
  place.next_free = std::exchange(free_slots_, index);
  pending_count_.fetch_sub(1);
  return std::exchange(place.call, nullptr);
}

bool outgoing_link::abandon(std::uint64_t id, call_phase& phase, bool tell_peer) noexcept {
  outgoing_message unwanted;  // destroyed without the lock: tensors may run deleters of users
  {
    std::lock_guard lock(mutex_);
    if (!take(id)) return false;
    ++errors_;
    const auto unsent = std::find_if(waiting_.begin(), waiting_.end(), [id](const outgoing_message& message) {
      return message.header.kind == frame_kind::request && message.header.call_id == id;
    });
    if (unsent != waiting_.end()) {  // the peer need not learn of it at all
      unwanted = std::move(*unsent);
      waiting_.erase(unsent);
      --sent_;
      owner_->count_sent(-1);
      phase = call_phase::connecting;
      return true;
    }
  }
  const bool open = open_.load(std::memory_order_acquire);
  phase = open ? call_phase::waiting_for_reply : call_phase::connecting;
  if (!tell_peer) return true;
  try {
    outgoing_message cancel;
    cancel.header.kind = frame_kind::cancel;
    cancel.header.call_id = id;
    cancel.begin_payload();
    cancel.finish();
    send(std::move(cancel));
  } catch (const std::exception& e) {
    log(log_level::warning,
        fmt::format("could not tell {} that a call was given up: {}", to_string(peer_.who), e.what()));
  }
  return true;
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
  std::vector<pending_call*> ended;
  std::vector<outgoing_message> unsent;  // destroyed without the lock: tensors may run deleters of users
  const call_phase phase = open_.load() ? call_phase::waiting_for_reply : call_phase::connecting;
  {
    std::lock_guard lock(mutex_);
    closed_.store(true);
    unsent.swap(waiting_);
    owner_->count_sent(-std::exchange(sent_, 0));
    for (std::uint32_t index = 0; index != slots_.size(); ++index) {
      if (!slots_[index].call) continue;
      ended.push_back(take((std::uint64_t{slots_[index].use} << 32U) | index));
    }
    errors_ += ended.size();
  }
  for (pending_call* call : ended) call->on_failure(code, phase, detail);
}

void outgoing_link::fail(errc code, const std::string& detail) noexcept {
  end_all(code, detail);
  if (!current_connection()) owner_->on_link_closed(this);
}

void outgoing_link::close(errc code, const std::exception_ptr& reason, bool take_leave) noexcept {
  end_all(code, text_of(reason));
  if (auto connection = current_connection()) {
    if (take_leave) say_farewell(*connection);
    connection->close(reason);
  } else {
    owner_->on_link_closed(this);  // should the attempt to connect succeed later, opened() closes the connection
  }
}

void outgoing_link::send_control(outgoing_message&& message) noexcept {
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
  {
    std::lock_guard lock(mutex_);
    call = take(message.header.call_id);
    bytes_received_ += message.header.message_bytes();
    if (call && kind != frame_kind::reply) ++errors_;
  }
  if (call) {
    call->on_reply(std::move(message));
  } else {
    owner_->count_late_reply();
  }
}

void outgoing_link::list_calls(std::vector<open_call>& calls) const {
  std::lock_guard lock(mutex_);
  if (pending_count_.load() == 0) return;
  const bool open = open_.load();
  const std::string transport(open ? connection_->transport_name() : "");
  const std::string route = open ? connection_->description() : "";
  for (const slot& each : slots_) {
    // What is in a slot has not been completed: its owner keeps it until it has been taken out.
    if (!each.call) continue;
    calls.push_back({.id = each.call->call_id,
                     .method = each.call->method,
                     .peer = peer_.who,
                     .phase = open ? call_phase::waiting_for_reply : call_phase::connecting,
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
  note(*owner_, link_event::kind::lost, peer_, which, reason);
  end_all(owner_->closing() ? errc::shutting_down : errc::peer_lost, text_of(reason));
  owner_->on_link_lost(peer_, which);
  owner_->on_link_closed(this);
}

// ---------------------------------------------------------------- incoming_link

void incoming_link::start() {
  owner_->on_link_open(peer_, *connection_, false);
  try {
    connection_->start(shared_from_this());
  } catch (...) {
    owner_->on_link_lost(peer_, *connection_);
    throw;
  }
  note(*owner_, link_event::kind::accepted, peer_, *connection_);
}

void incoming_link::close(const std::exception_ptr& reason, bool take_leave) noexcept {
  if (take_leave) say_farewell(*connection_);
  connection_->close(reason);
}

void incoming_link::on_message(connection& from, inbound_message&& message) noexcept {
  peer_.heard();
  if (message.header.kind == frame_kind::request) {
    add(served_, 1);
    add(bytes_received_, message.header.message_bytes());
    return handler_.on_request(shared_from_this(), peer_.who, std::move(message));
  }
  if (message.header.kind == frame_kind::control) return owner_->on_control(peer_, std::move(message));
  if (message.header.kind == frame_kind::cancel) {
    stoppable* running = nullptr;
    {
      std::lock_guard lock(mutex_);
      stoppable** found = find_running(message.header.call_id);
      if (!found) return;  // it has just ended
      running = *found;
      running->add_reference();
    }
    stop_later(*owner_, {running});
    return;
  }
  from.close(make_error(errc::protocol_error, fmt::format("{} sent a frame of kind {} as a caller", from.description(),
                                                          static_cast<int>(message.header.kind))));
}

void incoming_link::on_closed(connection& which, std::exception_ptr reason) noexcept {
  note(*owner_, link_event::kind::lost, peer_, which, reason);
  std::vector<stoppable*> running;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    for (auto& [id, call] : running_) {
      if (call) running.push_back(call);
    }
    for (auto& [id, call] : others_running_) running.push_back(call);
    for (stoppable* call : running) call->add_reference();
    running_.clear();
    others_running_.clear();
    owner_->count_handled(-std::exchange(handled_, 0));
  }
  stop_later(*owner_, std::move(running));
  owner_->on_link_lost(peer_, which);
  owner_->on_link_closed(this);
}

void incoming_link::handled() noexcept {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  ++handled_;
  owner_->count_handled(1);
}

void incoming_link::reply(std::uint64_t call_id, outgoing_message&& answer) {
  answer.header.call_id = call_id;
  answer.finish();
  bytes_sent_.fetch_add(answer.header.message_bytes(), std::memory_order_relaxed);
  connection_->send(std::move(answer));
}

void incoming_link::visit_requests(const agent::request_visitor& visit) const {
  std::lock_guard lock(mutex_);  // which keeps them: whatever ends is taken out first
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

// A caller may, against the protocol, give one id to two calls at once: only what has ended is taken out.
void incoming_link::end_call(std::uint64_t call_id, const stoppable& ended) noexcept {
  std::lock_guard lock(mutex_);
  const auto slot = static_cast<std::uint32_t>(call_id);
  if (slot < running_.size() && running_[slot].call == &ended) {
    running_[slot].call = nullptr;
  } else if (const auto found = others_running_.find(call_id);
             found != others_running_.end() && found->second == &ended) {
    others_running_.erase(found);
  }
}

stoppable** incoming_link::find_running(std::uint64_t call_id) noexcept {
  const auto slot = static_cast<std::uint32_t>(call_id);
  if (slot < running_.size() && running_[slot].call && running_[slot].id == call_id) return &running_[slot].call;
  const auto found = others_running_.find(call_id);
  return found == others_running_.end() ? nullptr : &found->second;
}

}  // namespace detail
}  // namespace ferry::inline v0

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "faulty_agent.hpp"

namespace ferry::inline v0::detail {
namespace {

// The duplicate of a request: its reply is dropped. No call of the user, so no shutdown waits for it: its reply may be lost.
struct echo final : pending_call {
  void on_reply(inbound_message&&) noexcept override { delete this; }
  void on_failure(errc, call_phase, const std::string&) noexcept override { delete this; }
};

message_kinds kind_of_reply(const frame_header& header) {
  return header.kind == frame_kind::reply ? message_kinds::reply : message_kinds::exception;
}

}  // namespace

faulty_call::faulty_call(std::shared_ptr<fault_engine> engine, pending_call* user, open_call facts,
                         incarnation_id incarnation)
    : engine_(std::move(engine)),
      user_(user),
      facts_(std::move(facts)),
      to_(facts_.peer.id(), incarnation),
      peer_(facts_.peer.name()),
      method_(facts_.method),
      until_(facts_.until) {
  began = facts_.began;
  urgency = user->urgency;
  reaches_leaving = user->reaches_leaving;
}

open_call faulty_call::describe(const std::vector<open_call>& inside) const {
  open_call result = facts_;
  std::lock_guard lock(mutex_);
  result.phase = stage_ == stage::unsent ? call_phase::connecting : call_phase::waiting_for_reply;
  result.route = "held by a fault injector";
  if (stage_ != stage::sent) return result;
  const auto found = std::find_if(inside.begin(), inside.end(), [&](const open_call& each) {
    return each.id == inner_ticket_.id && each.peer == facts_.peer;
  });
  if (found == inside.end()) return result;
  result.phase = found->phase;
  result.transport = found->transport;
  result.route = found->route;
  return result;
}

void faulty_call::begin(outgoing_message&& request, reply_wait how) {
  const fault_decision decision =
      engine_->rules().decide({message_kinds::request, fault_direction::sending, peer_, method_, request.payload()});
  const auto self = shared_from_this();
  const auto fail_soon = [&](errc code, const char* why) {
    request.finish();  // an unsendable message is an error of the caller all the same
    engine_->hold(deadline(clock::now()), [self, code, why] { self->fail(code, call_phase::connecting, why); });
  };
  if (decision.pass) {
    send(std::move(request), how);
    return engine_->passed(peer_);
  }
  switch (decision.rule.action) {
    case fault_action::drop:
      request.finish();
      watch_deadline();
      break;
    case fault_action::delay:
    case fault_action::reorder: {
      request.finish();
      watch_deadline();
      const auto kept = std::make_shared<outgoing_message>(std::move(request));
      engine_->hold(decision.rule, peer_, [self, kept] { self->send_late(*kept); });
      break;
    }
    case fault_action::duplicate: {
      outgoing_message second = request.copy();
      send(std::move(request), how);
      send_copy(std::move(second));
      engine_->passed(peer_);
      break;
    }
    case fault_action::corrupt:
      engine_->rules().damage(request.payload());
      send(std::move(request), how);
      engine_->passed(peer_);
      break;
    case fault_action::fail: fail_soon(errc::injected_failure, "a fault injector failed the sending"); break;
    case fault_action::cut: fail_soon(errc::connect_failed, "a fault injector has cut the peer off"); break;
  }
}

void faulty_call::send(outgoing_message&& request, reply_wait how) {
  {
    std::lock_guard lock(mutex_);
    stage_ = stage::sending;
    counted_ = true;
    keep_ = shared_from_this();
  }
  call_ticket ticket;
  try {
    ticket = engine_->inner().call(to_, std::move(request), *this, until_, how);
  } catch (...) {
    std::lock_guard lock(mutex_);
    stage_ = stage::over;
    counted_ = false;
    keep_.reset();
    throw;
  }
  bool unwanted = false;
  {
    std::lock_guard lock(mutex_);
    inner_ticket_ = ticket;
    if (stage_ == stage::sending) stage_ = stage::sent;
    unwanted = given_up_;
  }
  if (unwanted) give_up_inside();
}

void faulty_call::send_late(outgoing_message& request) noexcept {
  if (!user_.load()) return;
  if (!until_.is_never()) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(until_.remaining()).count();
    if (left <= 0) return;  // the watch on the deadline reports it
    request.header.timeout_us = static_cast<std::uint64_t>(left);
  }
  try {
    send(std::move(request), reply_wait::none);
  } catch (const error& problem) {
    fail(problem.kind(), call_phase::connecting, std::string(problem.message()));
  } catch (const std::exception& problem) {
    fail(errc::connection_lost, call_phase::connecting, problem.what());
  }
}

void faulty_call::send_copy(outgoing_message&& request) noexcept {
  try {
    auto second = std::make_unique<echo>();
    (void)engine_->inner().call(to_, std::move(request), *second, until_, reply_wait::none);
    (void)second.release();
    engine_->inner().finished_calls(1);
  } catch (const std::exception& problem) {
    log(log_level::warning, std::string("a fault injector could not send a request twice: ") + problem.what());
  }
}

void faulty_call::watch_deadline() {
  if (until_.is_never()) return;
  {
    const std::lock_guard lock(mutex_);
    if (deadline_watch_ != 0) return;
  }
  const std::uint64_t watch = engine_->hold(until_, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->fail(errc::rpc_timeout, call_phase::waiting_for_reply, "");
  });
  {
    const std::lock_guard lock(mutex_);
    deadline_watch_ = watch;
    if (user_.load()) return;
  }
  engine_->unhold(watch);  // the call has ended meanwhile, without a watch to remove
}

void faulty_call::inner_is_over() noexcept {
  std::shared_ptr<faulty_call> kept;
  bool counted = false;
  {
    std::lock_guard lock(mutex_);
    stage_ = stage::over;
    counted = std::exchange(counted_, false);
    kept = std::move(keep_);
  }
  if (counted) engine_->inner().finished_calls(1);
}

// The user has given the call up, and the peer is not told. No shutdown waits for it: without a deadline it may never end.
void faulty_call::leave_inside() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (!std::exchange(counted_, false)) return;
  }
  engine_->inner().finished_calls(1);
}

void faulty_call::on_reply(inbound_message&& reply) noexcept {
  const auto self = shared_from_this();
  inner_is_over();
  if (!user_.load()) return;
  try {
    const fault_decision decision = engine_->rules().decide(
        {kind_of_reply(reply.header), fault_direction::receiving, peer_, method_, reply.payload});
    if (!decision.pass) {
      switch (decision.rule.action) {
        case fault_action::drop: return watch_deadline();
        case fault_action::cut:
          return fail(errc::peer_lost, call_phase::waiting_for_reply, "a fault injector cut the peer off");
        case fault_action::delay:
        case fault_action::reorder: {
          watch_deadline();
          const auto kept = std::make_shared<inbound_message>(std::move(reply));
          return engine_->hold(decision.rule, peer_, [self, kept] { self->deliver(std::move(*kept), true); });
        }
        case fault_action::corrupt:
          engine_->rules().damage({const_cast<std::byte*>(reply.payload.data()), reply.payload.size()});
          break;
        case fault_action::duplicate:  // a second reply finds no call
        case fault_action::fail: break;
      }
    }
    deliver(std::move(reply), false);
    engine_->passed(peer_);
  } catch (const std::exception& problem) {  // no memory, no timer
    fail(errc::resource_exhausted, call_phase::waiting_for_reply, problem.what());
  }
}

void faulty_call::on_failure(errc code, call_phase phase, const std::string& detail) noexcept {
  const auto self = shared_from_this();
  inner_is_over();
  if (pending_call* user = take()) {
    ended();
    user->on_failure(code, phase, detail);
  }
}

void faulty_call::deliver(inbound_message&& reply, bool late) noexcept {
  pending_call* user = take();
  if (!user) return;
  ended();
  user->on_reply(std::move(reply));
  if (late) interrupt();  // the caller may be driving the connection
}

void faulty_call::fail(errc code, call_phase phase, const std::string& detail) noexcept {
  pending_call* user = take();
  if (!user) return;
  const auto self = shared_from_this();
  ended();
  user->on_failure(code, phase, detail);
  interrupt();
  give_up_inside();
}

void faulty_call::forget() noexcept {
  take();
  ended();
}

void faulty_call::ended() noexcept {
  std::uint64_t watch = 0;
  {
    std::lock_guard lock(mutex_);
    watch = deadline_watch_;
  }
  if (watch != 0) engine_->unhold(watch);
  engine_->delist(*this);
}

void faulty_call::give_up_inside() noexcept {
  call_ticket ticket;
  {
    std::lock_guard lock(mutex_);
    given_up_ = true;
    if (stage_ != stage::sent) return;
    ticket = inner_ticket_;
  }
  const auto self = shared_from_this();
  call_phase phase{};
  if (engine_->inner().abandon(ticket, phase)) inner_is_over();
}

bool faulty_call::wait(const drive_condition& condition, deadline until) noexcept {
  call_ticket ticket;
  {
    std::lock_guard lock(mutex_);
    ticket = inner_ticket_;
  }
  return ticket.route && engine_->inner().wait(ticket, condition, until);
}

void faulty_call::interrupt() noexcept {
  call_ticket ticket;
  {
    std::lock_guard lock(mutex_);
    ticket = inner_ticket_;
  }
  if (ticket.route) engine_->inner().interrupt(ticket);
}

bool faulty_call::abandon(call_phase& phase) noexcept {
  if (!take()) return false;
  const auto self = shared_from_this();
  ended();
  bool sent = false;
  {
    std::lock_guard lock(mutex_);
    sent = stage_ == stage::sent;
    phase = stage_ == stage::unsent ? call_phase::connecting : call_phase::waiting_for_reply;
  }
  if (sent) {
    try {
      const fault_decision decision =
          engine_->rules().decide({message_kinds::cancel, fault_direction::sending, peer_, method_, {}});
      if (!decision.pass) {
        switch (decision.rule.action) {
          case fault_action::drop:
          case fault_action::cut: leave_inside(); return true;
          case fault_action::delay:
          case fault_action::reorder:
            engine_->hold(decision.rule, peer_, [self] { self->give_up_inside(); });
            return true;
          default: break;
        }
      }
    } catch (const std::exception& problem) {
      log(log_level::warning, std::string("a fault injector let a cancellation pass: ") + problem.what());
    }
    call_ticket ticket;
    {
      std::lock_guard lock(mutex_);
      ticket = inner_ticket_;
    }
    if (engine_->inner().abandon(ticket, phase)) inner_is_over();
  } else {
    give_up_inside();
  }
  return true;
}

}  // namespace ferry::inline v0::detail

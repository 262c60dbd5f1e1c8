#include <ferry/rpc/detail/call_lifecycle.hpp>

#include <exception>
#include <new>
#include <utility>

#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../../base/what_of.hpp"
#include "../pipeline/library_clients.hpp"
#include "../worker/worker_core.hpp"
#include "call_report.hpp"

namespace ferry::inline v0::detail {

// ---------------------------------------------------------------- handles

std::uint32_t message_handles::put(const void* handle) {
  if (!carried_) carried_ = worker_->carry(to_);
  return carried_->put(handle);
}

// ---------------------------------------------------------------- the life

call_lifecycle::call_lifecycle() noexcept = default;

call_lifecycle::call_lifecycle(call_lifecycle&& other) noexcept
    : facts(std::move(other.facts)),
      hooks(std::move(other.hooks)),
      carried(std::move(other.carried)),
      held(std::move(other.held)),
      of_one_thread(other.of_one_thread),
      context(std::move(other.context)) {}

call_lifecycle::~call_lifecycle() {
  if (!hooks.empty() && told_.load(std::memory_order_acquire) == told::nothing) not_accepted(nullptr);
}

namespace {

call_event event_of(call_moment what, const call_facts& facts, const pending_call& call) noexcept {
  call_event event{.what = what, .peer = facts.peer.id(), .call = call.call_id, .method = facts.method->id};
  event.entry = facts.method;
  event.facts = &facts;
  event.made = call.began;
  return event;
}

// Tells what kept a call from being sent, as a code and a text.
template <class Tell>
void tell_reason(const std::exception_ptr& why, const Tell& tell) noexcept {
  if (!why) return tell(errc::invalid_argument, "what was to be sent could not be encoded");
  try {
    std::rethrow_exception(why);
  } catch (const error& e) {
    tell(e.kind(), e.message());
  } catch (const std::bad_alloc& e) {
    tell(errc::out_of_memory, e.what());
  } catch (const std::exception& e) {
    tell(errc::invalid_argument, what_of(e));
  } catch (...) {
    tell(errc::invalid_argument, "an exception of an unknown type");
  }
}

}  // namespace

void call_lifecycle::accepted(const pending_call& call) noexcept {
  call_event event = event_of(call_moment::started, facts, call);
  event.at = call.began;
  event.bytes = call.bytes;
  facts.worker->observers().tell(*facts.worker, event);
  if (!hooks.empty()) tell_sent();
}

void call_lifecycle::accepted_one_way(clock::time_point began, std::uint64_t bytes) noexcept {
  call_event event{.what = call_moment::one_way_sent, .at = began, .peer = facts.peer.id()};
  event.method = facts.method->id;
  event.entry = facts.method;
  event.bytes = bytes;
  event.facts = &facts;
  event.made = began;
  facts.worker->observers().tell(*facts.worker, event);
  if (carried) carried->sent();
  if (hooks.empty()) return;
  tell_sent();
  tell_ended({}, call_phase::waiting_for_reply, {});
}

void call_lifecycle::not_accepted(const std::exception_ptr& why) noexcept {
  carried.reset();
  told expected = told::nothing;
  const bool tells_hooks = !hooks.empty() && told_.compare_exchange_strong(expected, told::sent);
  if (!why && !tells_hooks) return;
  tell_reason(why, [&](errc code, std::string_view text) {
    if (why) {
      call_event event{.what = call_moment::not_sent, .peer = facts.peer.id(), .method = facts.method->id};
      event.entry = facts.method;
      event.code = code;
      event.facts = &facts;
      facts.worker->observers().tell(*facts.worker, event);
    }
    if (!tells_hooks) return;
    for (caller_hooks* each = hooks.last(); each; each = kept_hooks::before(*each)) each->not_sent();
    tell_ended(code, call_phase::connecting, text);
  });
}

// The reply may be there before the thread that sent the request comes here: the first of both tells it, and the thread
// with the reply waits for the other one, which is in the middle of it.
void call_lifecycle::tell_sent() noexcept {
  const auto tell = [&] {
    for (caller_hooks* each = hooks.first(); each; each = kept_hooks::after(*each)) each->sent();
  };
  if (of_one_thread) {
    if (told_.load(std::memory_order_relaxed) != told::nothing) return;
    told_.store(told::sent, std::memory_order_relaxed);
    return tell();
  }
  told expected = told::nothing;
  if (told_.compare_exchange_strong(expected, told::telling)) {
    tell();
    told_.store(told::sent);
    told_.notify_all();
    return;
  }
  while (told_.load() == told::telling) told_.wait(told::telling);
}

void call_lifecycle::tell_ended(errc code, call_phase phase, std::string_view text) noexcept {
  told_.store(told::ended, std::memory_order_release);  // what waits, waits for sent
  for (caller_hooks* each = hooks.last(); each; each = kept_hooks::before(*each)) each->ended({code, phase, text});
}

void call_lifecycle::replied(const pending_call& call, const inbound_message& reply) noexcept {
  const frame_header& header = reply.header;
  call_event event = event_of(call_moment::replied, facts, call);
  event.at = reply.arrived;
  event.bytes = header.message_bytes();
  event.code = header.kind == frame_kind::reply       ? errc{}
               : header.kind == frame_kind::exception ? errc::remote_exception
                                                      : static_cast<errc>(header.code);
  facts.worker->observers().tell(*facts.worker, event);
  if (carried) settle(header.kind != frame_kind::failure);  // a callee that could decode the request has taken them
  if (!hooks.empty()) tell_sent();
}

void call_lifecycle::settle(bool received) noexcept {
  carried->settled(received);
  carried.reset();
}

std::exception_ptr call_lifecycle::tell_hooks_now(inbound_message& reply) noexcept {
  told_.store(told::ended, std::memory_order_release);
  incoming_reply view(reply, facts);
  std::exception_ptr failure;
  for (caller_hooks* each = hooks.last(); each; each = kept_hooks::before(*each)) {  // all of them, whatever one throws
    try {
      each->replied(view);
    } catch (...) {
      if (!failure) failure = current_error();
    }
  }
  return failure;
}

void call_lifecycle::failed(const pending_call& call, errc code, call_phase phase, const std::string& detail) noexcept {
  const bool timed_out = code == errc::rpc_timeout;
  call_event event = event_of(timed_out                      ? call_moment::timed_out
                              : code == errc::call_cancelled ? call_moment::cancelled
                                                             : call_moment::failed,
                              facts, call);
  event.code = code;
  event.text = detail.empty() ? to_string(phase) : std::string_view(detail);
  facts.worker->observers().tell(*facts.worker, event);
  if (carried) settle(false);
  if (hooks.empty()) return;
  tell_sent();
  tell_ended(code, phase, detail);
}

void call_lifecycle::end(const pending_call& call) noexcept {
  if (const call_observers& watching = facts.worker->observers(); watching.see(call_moment::ended))
    watching.tell(*facts.worker, event_of(call_moment::ended, facts, call));
  facts.worker->agent_unchecked().finished_calls(1);
}

}  // namespace ferry::inline v0::detail

// Asynchronous calls.

#include <atomic>
#include <memory>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <ferry/rpc/call.hpp>

#include "../../transport/reactor/io_threads.hpp"
#include "../worker/worker_core.hpp"
#include "call_report.hpp"

namespace ferry::inline v0::detail {

// A reply on its way to a thread that may run user code.
struct async_call::decoding : work {
  explicit decoding(async_call& of) noexcept : call(of) {
    run = [](work* self) noexcept {
      const std::unique_ptr<decoding> owned(static_cast<decoding*>(self));
      owned->call.deliver(owned->reply);
      owned->call.wake_helper();
      owned->call.finish();
    };
  }
  async_call& call;
  inbound_message reply;
};

async_call::~async_call() { delete delivery_; }

void async_call::start(outgoing_call& call) {
  const ferry::deadline until = call.until();
  code_ = method_hold(*facts().method);
  began = call.began();
  // Before the call can complete; it may be complete when agent::call() returns.
  keep();  // until finish()
  try {
    if (!life_.hooks.empty()) delivery_ = new decoding(*this);
    if (call.stop() && call.stop()->stop_possible()) stop_.emplace(*call.stop(), stopper{this});
    ferry::agent& agent = facts().worker->agent();  // throws once it has been shut down
    ticket_ = agent.call(call.target(), std::move(call.message), *this, until, call.reader());
  } catch (...) {
    const std::exception_ptr why = not_sent(facts(), std::current_exception());
    life_.not_accepted(why);
    stop_.reset();
    drop();
    std::rethrow_exception(why);
  }
  life_.accepted(*this);
  let_go_of_hooks();
  sent_.store(true);
  if (unwanted_.load()) give_up();
}

// A thread reads until its call has a value, or a reply that it decodes itself once it has stopped reading.
struct async_call::helping final : drive_condition {
  explicit helping(const async_call& c, const future_state_base& s) noexcept
      : call(c), state(s), outer(std::exchange(current, this)) {}
  ~helping() { current = outer; }
  helping(const helping&) = delete;
  helping& operator=(const helping&) = delete;
  [[nodiscard]] bool done() const noexcept override { return state.ready() || reply; }

  const async_call& call;
  const future_state_base& state;
  helping* const outer;
  work* reply = nullptr;
  static thread_local helping* current;
};
thread_local async_call::helping* async_call::helping::current = nullptr;

bool async_call::help(const future_state_base& state, deadline until) {
  work* reply = nullptr;
  {
    const blocking_scope blocking;
    const helping scope(*this, state);
    facts().worker->agent_unchecked().wait(ticket_, scope, until);
    reply = scope.reply;
  }
  if (reply) reply->run(reply);
  return state.ready();
}

void async_call::give_up() noexcept {
  unwanted_.store(true);
  if (!sent_.load()) return;  // start() looks at unwanted_ next
  // The call goes on: it is the parent process's, like the connection and the locks.
  if (is_forked_child()) return set_cancelled(caught([] { check_not_forked(); }));
  call_phase phase{};
  if (!facts().worker->agent_unchecked().abandon(ticket_, phase)) return;
  life_.failed(*this, errc::call_cancelled, phase, "");
  set_cancelled(failure_of(facts(), errc::call_cancelled, phase, ""));
  wake_helper();
  finish();
}

// Runs on a thread that reads the connection. User code must not block it: it may call the same peer.
void async_call::on_reply(inbound_message&& reply) noexcept {
  life_.replied(*this, reply);
  decoding* item = std::exchange(delivery_, nullptr);
  const bool has_hooks = item != nullptr;
  if (!item && (!decodes_alone_ || reply.header.kind == frame_kind::exception))
    item = new (std::nothrow) decoding(*this);
  if (!item) {
    complete(reply);
    return finish();
  }
  item->reply = std::move(reply);
  if (helping::current && &helping::current->call == this) {
    helping::current->reply = item;
    return;
  }
  const auto threads = facts().worker->agent_unchecked().reactor();  // the item may end the worker
  if (has_hooks) return threads->post_elsewhere(item);               // they may block
  threads->post(item);                                               // on a reactor thread: runs after what it reads
}

// Hooks are told in the context of the call.
void async_call::deliver(inbound_message& reply) noexcept {
  std::exception_ptr refused;
  if (!life_.hooks.empty()) {
    const captured_context context = life_.context;
    const context_scope scope(context);
    const streams_scope streams(reply.streams);  // the tensors are valid in the order of these
    refused = life_.tell_hooks(reply);
  }
  if (refused) return set_error(std::move(refused));  // runs continuations: outside of those scopes
  complete(reply);
}

// start() and finish() both do: the later one drops what the hooks keep.
void async_call::let_go_of_hooks() noexcept {
  if (hook_users_.fetch_sub(1, std::memory_order_acq_rel) == 1) life_.hooks.clear();
}

void async_call::on_failure(errc code, call_phase phase, const std::string& detail) noexcept {
  life_.failed(*this, code, phase, detail);
  set_error(failure_of(facts(), code, phase, detail));
  wake_helper();
  finish();
}

// The call was completed, but not by a reply that the waiting thread would have read: wake the thread in help(). Before
// sent_ is set no handle of the future exists, and each later one finds it complete.
void async_call::wake_helper() noexcept {
  if (sent_.load()) facts().worker->agent_unchecked().interrupt(ticket_);
}

void async_call::finish() noexcept {
  stop_.reset();
  // A result that is kept keeps nothing else.
  life_.held.reset();
  life_.context = {};
  let_go_of_hooks();
  const method_hold code = std::move(code_);                   // until no code of the state runs
  const std::shared_ptr<worker_core> worker = facts().worker;  // dropping the reference may destroy the state
  life_.end(*this);
  drop();
}

}  // namespace ferry::inline v0::detail

#include <ferry/rpc/call.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/futex.hpp>
#include <ferry/base/log.hpp>

#include "../transport/io_threads.hpp"
#include "worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

std::string describe(const call_facts& facts) {
  std::string peer = fmt::format("worker {}", facts.peer.value);
  try {
    peer = to_string(facts.worker->agent_unchecked().find(facts.peer));
  } catch (const error&) {  // NOLINT(bugprone-empty-catch): the number will do
  }
  return fmt::format("call of '{}' from {} to {}", facts.method->name,
                     to_string(facts.worker->agent_unchecked().self()), peer);
}

std::string in_milliseconds(timeout value) {
  if (!value.is_set() || value.is_never()) return "none";
  return fmt::format("{} ms", std::chrono::duration<double, std::milli>(value.duration()).count());
}

// What the caller knows of a peer that did not answer in time.
std::string hint(const call_facts& facts, call_phase phase) {
  if (phase == call_phase::connecting) {
    return "; no connection to it was open (does it run, and can it be reached from here?)";
  }
  const auto silence = facts.worker->agent_unchecked().silence(facts.peer);
  if (!silence) return {};
  const double seconds = std::chrono::duration<double>(*silence).count();
  return fmt::format("; it was last heard of {:.1f} s ago", seconds);
}

std::exception_ptr failure_of(const call_facts& facts, errc code, call_phase phase, const std::string& detail) {
  switch (code) {
    case errc::rpc_timeout:
      return make_error(code,
                        fmt::format("{}: RPC ran for more than set timeout ({}{}), while {}{}", describe(facts),
                                    in_milliseconds(facts.limit),
                                    facts.inherited ? ", all that the deadline of the handler which called left" : "",
                                    to_string(phase), hint(facts, phase)));
    case errc::call_cancelled:
      return make_error(code, fmt::format("{}: cancelled by the caller while {}", describe(facts), to_string(phase)));
    default: return make_error(code, fmt::format("{} failed while {}: {}", describe(facts), to_string(phase), detail));
  }
}

void trace_call(trace_event::kind what, const call_facts& facts, std::uint64_t id) noexcept {
  if (!trace_enabled()) return;
  const std::string peer = std::to_string(facts.peer.value);
  trace({what, facts.method->name, facts.worker->agent_unchecked().self().name(), peer, id,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
}

void record(const call_facts& facts, flight_event what, flight_time at, const pending_call& call, std::uint64_t bytes,
            errc code = {}, std::string_view text = {}) noexcept {
  flight_recorder& recorder = facts.worker->recorder();
  if (text.empty()) {
    recorder.add(what, at, facts.peer, call.call_id, facts.method->id, bytes, code);
  } else {
    recorder.add(what, at, facts.peer, call.call_id, facts.method->id, bytes, code, text);
  }
}

void record_start(const call_facts& facts, const pending_call& call) noexcept {
  record(facts, flight_event::call_started, flight_time(call.began), call, call.bytes);
}

void record_reply(const call_facts& facts, const pending_call& call, const inbound_message& reply) noexcept {
  if (!facts.worker->recorder().on()) return;
  const frame_header& header = reply.header;
  const errc code = header.kind == frame_kind::reply       ? errc{}
                    : header.kind == frame_kind::exception ? errc::remote_exception
                                                           : static_cast<errc>(header.code);
  record(facts, flight_event::call_replied, flight_time::now(), call, header.message_bytes(), code);
}

void record_failure(const call_facts& facts, const pending_call& call, errc code, call_phase phase,
                    const std::string& detail) noexcept {
  const bool timed_out = code == errc::rpc_timeout;
  const auto what = timed_out                      ? flight_event::call_timed_out
                    : code == errc::call_cancelled ? flight_event::call_cancelled
                                                   : flight_event::call_failed;
  record(facts, what, flight_time::now(), call, 0, code, detail.empty() ? to_string(phase) : std::string_view(detail));
  if (timed_out) facts.worker->record_timeout();
}

// The caller's end of a blocking call; lives on its stack.
class sync_call final : public pending_call, public drive_condition {
 public:
  void on_reply(inbound_message&& reply) noexcept override {
    reply_ = std::move(reply);
    complete();
  }
  void on_failure(errc code, call_phase phase, const std::string& detail) noexcept override {
    code_ = code;
    phase_ = phase;
    try {
      detail_ = detail;
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the code says enough
    }
    failed_ = true;
    complete();
  }
  [[nodiscard]] bool done() const noexcept override {
    return status_.load(std::memory_order_acquire) == complete_status;
  }

  // Sleeps until done, poked, or the deadline has passed.
  void sleep(deadline until) noexcept {
    std::uint32_t status = pending_status;
    if (!status_.compare_exchange_strong(status, waited_status) && status != waited_status) return;
    while (status_.load(std::memory_order_acquire) == waited_status && !until.expired()) {
      futex_wait(status_, waited_status, until);
    }
  }
  void sleep_until_done() noexcept {
    std::uint32_t status = status_.load(std::memory_order_acquire);
    while (status != complete_status) {
      if (status == waited_status || status_.compare_exchange_weak(status, waited_status)) {
        futex_wait(status_, waited_status, deadline{});
        status = status_.load(std::memory_order_acquire);
      }
    }
  }
  // Ends a sleep() although the call is not done.
  void poke() noexcept {
    std::uint32_t status = status_.load();
    while (status != complete_status && !status_.compare_exchange_weak(status, poked_status)) {
    }
    futex_wake_all(status_);
  }

  inbound_message reply_;
  errc code_{};
  call_phase phase_{};
  std::string detail_;
  bool failed_ = false;

 private:
  static constexpr std::uint32_t pending_status = 0;
  static constexpr std::uint32_t waited_status = 1;
  static constexpr std::uint32_t complete_status = 2;
  static constexpr std::uint32_t poked_status = 3;

  void complete() noexcept {
    // After the exchange the waiter may be gone; the wake-up uses the address only.
    if (status_.exchange(complete_status) == waited_status) futex_wake_all(status_);
  }
  std::atomic<std::uint32_t> status_{pending_status};
};

}  // namespace

outgoing_call::outgoing_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method,
                             bool one_way)
    : worker_(std::move(worker)),
      method_(method),
      limit_(destination.options().timeout.value_or(worker_->default_timeout())),
      stop_(destination.options().stop.get()) {
  const ferry::agent& agent = worker_->agent();
  if (destination.by_id()) {
    peer_ = agent.find(destination.id()).id();
    if (!destination.name().empty() && agent.find(destination.id()).name() != destination.name()) {
      throw_error(errc::unknown_worker,
                  fmt::format("{} could not find destination worker_info(id={}, name={}) in its group",
                              to_string(agent.self()), peer_.value, destination.name()));
    }
  } else {
    peer_ = agent.find(destination.name()).id();
  }
  until_ = deadline::after(limit_, began_);
  if (const call_context* context = thread_context()) {
    if (context->deadline() < until_) {
      until_ = context->deadline();
      inherited_ = true;
      limit_ = std::max<std::chrono::nanoseconds>(until_.remaining(), std::chrono::nanoseconds(1));
    }
  }
  if (stop_ && stop_->stop_requested()) {
    throw call_cancelled(describe({worker_, &method_, peer_, limit_}) +
                         ": its stop token was stopped before it was sent");
  }
  if (!until_.is_never() && until_.expired()) {
    throw rpc_timeout(describe({worker_, &method_, peer_, limit_}) +
                      ": the deadline of the running handler has passed");
  }
  frame_header& header = message.header;
  header.kind = frame_kind::request;
  header.method = method_.id;
  header.signature = method_.signature;
  if (one_way) header.flags |= frame_one_way;
  if (until_.is_never() || one_way) {
    header.flags |= frame_no_deadline;
  } else {
    header.timeout_us = static_cast<std::uint64_t>(std::max<std::int64_t>(
        1, std::chrono::duration_cast<std::chrono::microseconds>(until_.remaining(began_)).count()));
  }
  message.begin_payload();
}

void outgoing_call::send_one_way() {
  const std::uint64_t bytes = message.size();
  worker_->agent().notify(peer_, std::move(message));
  worker_->recorder().add(flight_event::one_way_sent, flight_time(began_), peer_, 0, method_.id, bytes);
}

inbound_message outgoing_call::run() {
  ferry::agent& agent = worker_->agent();
  blocking_scope blocking;
  sync_call call;
  call.began = began_;
  std::atomic<bool> stopped{false};
  const call_ticket ticket = agent.call(peer_, std::move(message), call, until_, true);
  const call_facts facts{worker_, &method_, peer_, limit_, inherited_};
  record_start(facts, call);
  trace_call(trace_event::kind::call_begin, facts, call.call_id);
  const auto stop = [&]() noexcept {
    stopped.store(true);
    call.poke();
    agent.interrupt(ticket);
  };
  {
    std::optional<std::stop_callback<decltype(stop)>> stopper;
    if (stop_ && stop_->stop_possible()) stopper.emplace(*stop_, stop);

    struct condition final : drive_condition {
      condition(const sync_call& c, const std::atomic<bool>& s) : call(c), stopped(s) {}
      [[nodiscard]] bool done() const noexcept override { return call.done() || stopped.load(); }
      const sync_call& call;
      const std::atomic<bool>& stopped;
    } finished(call, stopped);

    // The clock, which is not cheap, was looked at when the call was made, and is when a wait ends without it being done.
    for (bool waited = false; !call.done(); waited = true) {
      const bool cancel = stopped.load();
      if (cancel || (waited && until_.expired())) {
        call_phase phase{};
        if (agent.abandon(ticket, phase)) {
          const errc code = cancel ? errc::call_cancelled : errc::rpc_timeout;
          record_failure(facts, call, code, phase, "");
          trace_call(trace_event::kind::call_end, facts, call.call_id);
          agent.finished_calls(1);
          std::rethrow_exception(failure_of(facts, code, phase, ""));
        }
        call.sleep_until_done();  // it is being completed by another thread
        break;
      }
      if (!agent.wait(ticket, finished, until_)) call.sleep(until_);
    }
  }
  if (call.failed_) {
    record_failure(facts, call, call.code_, call.phase_, call.detail_);
  } else {
    record_reply(facts, call, call.reply_);
  }
  trace_call(trace_event::kind::call_end, facts, call.call_id);
  agent.finished_calls(1);
  if (call.failed_) std::rethrow_exception(failure_of(facts, call.code_, call.phase_, call.detail_));
  return std::move(call.reply_);
}

// ---------------------------------------------------------------- replies

const wire_limits& reply_limits(const call_facts& facts) noexcept { return facts.worker->limits(); }

void check_reply(const call_facts& facts, const inbound_message& reply) {
  if (!reply.extensions.empty()) {
    try {
      check_extensions(reply.extensions);
    } catch (const error& e) {
      throw_error(e.kind(), fmt::format("{}: in the reply: {}", describe(facts), e.message()));
    }
  }
  if (reply.header.kind == frame_kind::reply) return;
  if (reply.header.kind == frame_kind::exception) rethrow_exception(reply, reply_limits(facts));
  std::string detail;
  decode_values(reply.payload, reply.tensors, reply_limits(facts), detail);
  const auto code = static_cast<errc>(reply.header.code);
  switch (code) {
    case errc::unknown_method:
      if (!detail.empty()) {
        throw_error(code, fmt::format("{}: the callee does not serve '{}' {}: {}", describe(facts), facts.method->name,
                                      facts.method->signature_text, detail));
      }
      throw_error(code,
                  fmt::format("{}: the callee's program has no method '{}' {} (code is not sent along: the function "
                              "must be compiled into both programs, and called or served there)",
                              describe(facts), facts.method->name, facts.method->signature_text));
    case errc::signature_mismatch:
      throw_error(code, fmt::format("{}: the caller has '{}' as {}, the callee as {}; were the two programs built from "
                                    "different sources?",
                                    describe(facts), facts.method->name, facts.method->signature_text, detail));
    case errc::bad_arguments:
      throw_error(code, fmt::format("{}: the callee could not decode the arguments: {}", describe(facts), detail));
    case errc::bad_result:
      throw_error(code, fmt::format("{}: the callee could not encode the result: {}", describe(facts), detail));
    default:
      throw_error(errc_name(code) == "unknown" ? errc::remote_exception : code,
                  fmt::format("{}: {}", describe(facts), detail));
  }
}

void throw_bad_result(const call_facts& facts) {
  std::string reason = describe_exception(std::current_exception());
  throw_error(errc::bad_result, fmt::format("{}: the result could not be decoded: {}", describe(facts), reason));
}

// ---------------------------------------------------------------- asynchronous calls

void async_call::start(outgoing_call& call) {
  facts_ = {call.worker(), &call.method(), call.peer(), call.limit(), call.inherited()};
  code_ = method_hold(call.method());
  began = call.began();
  keep();  // until finish()
  try {
    if (call.stop() && call.stop()->stop_possible()) stop_.emplace(*call.stop(), stopper{this});
    ticket_ = call.worker()->agent().call(call.peer(), std::move(call.message), *this, call.until(), false);
  } catch (...) {
    stop_.reset();
    drop();
    throw;
  }
  record_start(facts_, *this);
  trace_call(trace_event::kind::call_begin, facts_, call_id);
  sent_.store(true);
  if (unwanted_.load()) give_up();
}

struct async_call::decoding : work {
  async_call* call = nullptr;
  inbound_message reply;
};

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
  const blocking_scope blocking;
  work* reply = nullptr;
  {
    const helping scope(*this, state);
    facts_.worker->agent_unchecked().wait(ticket_, scope, until);
    reply = scope.reply;
  }
  if (reply) reply->run(reply);
  return state.ready();
}

void async_call::give_up() noexcept {
  unwanted_.store(true);
  if (!sent_.load()) return;  // start() looks at unwanted_ next
  call_phase phase{};
  if (!facts_.worker->agent_unchecked().abandon(ticket_, phase)) return;
  record_failure(facts_, *this, errc::call_cancelled, phase, "");
  set_cancelled(failure_of(facts_, errc::call_cancelled, phase, ""));
  wake_helper();
  finish();
}

// Runs on a thread that reads the connection, which code of users must not hold up: it may call the same peer.
void async_call::on_reply(inbound_message&& reply) noexcept {
  record_reply(facts_, *this, reply);
  if (!decodes_alone_ || reply.header.kind == frame_kind::exception) {
    if (auto* item = new (std::nothrow) decoding) {
      item->call = this;
      item->reply = std::move(reply);
      item->run = [](work* self) noexcept {
        const std::unique_ptr<decoding> owned(static_cast<decoding*>(self));
        owned->call->complete(owned->reply);
        owned->call->wake_helper();
        owned->call->finish();
      };
      if (helping::current && &helping::current->call == this) {
        helping::current->reply = item;
      } else {
        facts_.worker->agent_unchecked().reactor()->post(item);  // of a reactor thread: after what it reads
      }
      return;
    }
  }
  complete(reply);
  finish();
}

void async_call::on_failure(errc code, call_phase phase, const std::string& detail) noexcept {
  record_failure(facts_, *this, code, phase, detail);
  set_error(failure_of(facts_, code, phase, detail));
  wake_helper();
  finish();
}

// The call was completed, but not by a reply that the waiting thread would have read: a thread in help() has to look. Before
// sent_ is set nobody has the future, and whoever gets it finds it complete.
void async_call::wake_helper() noexcept {
  if (sent_.load()) facts_.worker->agent_unchecked().interrupt(ticket_);
}

void async_call::finish() noexcept {
  stop_.reset();
  trace_call(trace_event::kind::call_end, facts_, call_id);
  const method_hold code = std::move(code_);                  // until nothing of the state runs any more
  const std::shared_ptr<worker_core> worker = facts_.worker;  // the state may go with the reference
  worker->agent_unchecked().finished_calls(1);
  drop();
}

}  // namespace ferry::inline v0::detail

#include <ferry/rpc/call.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/detail/futex.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>

#include "../../wire/read_marks.hpp"
#include "../references/protocol/reference_records.hpp"
#include "../references/table/reference_table.hpp"
#include "../worker/worker_core.hpp"
#include "call_report.hpp"

namespace ferry::inline v0::detail {
namespace {

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
    } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): the error code suffices
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
    // After the exchange the waiter may be destroyed; the wake-up uses the address only.
    if (status_.exchange(complete_status) == waited_status) futex_wake_all(status_);
  }
  std::atomic<std::uint32_t> status_{pending_status};
};

// At the end of every call: the caller's streams wait until its arguments have been read.
class argument_order {
 public:
  explicit argument_order(std::shared_ptr<const read_marks> reads) noexcept : reads_(std::move(reads)) {}
  argument_order(const argument_order&) = delete;
  argument_order& operator=(const argument_order&) = delete;
  ~argument_order() {
    if (!reads_) return;
    try {
      reads_->let_streams_wait();
    } catch (const std::exception& problem) {
      log(log_level::warning, std::string("streams do not wait for what a call has read: ") + problem.what());
    }
  }

 private:
  const std::shared_ptr<const read_marks> reads_;
};

std::span<const stream> streams_of(const call_options& options) noexcept {
  return {options.streams.first(), options.streams.count()};
}

}  // namespace

outgoing_call::outgoing_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method,
                             call_mode whom)
    : streams_(streams_of(destination.options())),
      worker_(std::move(worker)),
      method_(method),
      limit_(destination.options().timeout.value_or(worker_->default_timeout())),
      stop_(destination.options().stop.get()),
      placement_(destination.options().placement.get()) {
  ferry::agent& agent = worker_->agent();
  bound();
  if (destination.by_id()) {
    peer_ = agent.open(destination.id(), until_);
    if (!destination.name().empty() && peer_.who.name() != destination.name()) {
      throw_error(
          errc::unknown_worker,
          fmt::format("{} could not find destination worker_info(id={}, name={}) in its group: {} has its id",
                      to_string(agent.self()), destination.id().value, destination.name(), to_string(peer_.who)));
    }
  } else {
    peer_ = agent.open(destination.name(), until_);
  }
  begin(whom);
}

outgoing_call::outgoing_call(const reference_handle& object, const call_options& options, const method_entry& method,
                             call_mode whom)
    : streams_(streams_of(options)),
      worker_(object.usable().table->worker()),
      method_(method),
      object_(object),
      limit_(options.timeout.value_or(worker_->default_timeout())),
      stop_(options.stop.get()),
      placement_(options.placement.get()) {
  bound();
  peer_ = {worker_->agent(), object.get()->owner(until_)};
  begin(whom);
}

outgoing_call::~outgoing_call() = default;

// The deadline of the handler that makes the call bounds it.
void outgoing_call::bound() {
  until_ = deadline::after(limit_, began_);
  if (const call_context* context = thread_context()) {
    if (context->deadline() < until_) {
      until_ = context->deadline();
      inherited_ = true;
      limit_ = std::max<std::chrono::nanoseconds>(until_.remaining(), std::chrono::nanoseconds(1));
    }
  }
}

// The destination is known.
void outgoing_call::begin(call_mode whom) {
  const bool one_way = whom == call_mode::one_way;
  references_ = handed_references(*worker_, {peer_.who.id(), peer_.incarnation});
  if (stop_ && stop_->stop_requested()) {
    throw call_cancelled(describe({worker_, &method_, peer_.who, limit_}) +
                         ": its stop token was stopped before it was sent");
  }
  if (!until_.is_never() && until_.expired()) {
    throw rpc_timeout(describe({worker_, &method_, peer_.who, limit_}) +
                      (inherited_
                           ? std::string(": the deadline of the running handler has passed")
                           : fmt::format(": its timeout of {} was over before it was sent", in_milliseconds(limit_))));
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
  const bool makes = creates(method_.flavour);
  if (object_ && !makes) add_object_record(message, &object_.get()->object, nullptr);
  if (const call_context* context = thread_context(); context && !one_way && !makes) {
    if (const call_chain* chain = context->chain()) {
      // The thread runs the handler: the answer of the handler waits for whatever this thread waits for.
      add_chain_record(message, *chain, whom == call_mode::waiting && incoming_call::on_this_thread() == context);
    }
  }
  if (placement_ && !one_way && !makes) add_placement_record(message, *placement_);
  message.begin_payload();
  message.handles = &references_;
}

void outgoing_call::place_tensors() {
  peer_.place(message, placement_);
  const bool reads = (message.header.flags & frame_one_way) == 0 && !creates(method_.flavour) &&
                     std::any_of(message.tensors.begin(), message.tensors.end(),
                                 [](const tensor& each) { return !operations_of(each.device().kind).immediate; });
  if (reads) message.reads = std::make_shared<read_marks>();
}

reference_handle outgoing_call::make_object() {
  const reference_handle made = worker_->references().create({peer_.who.id(), peer_.incarnation}, peer_.who);
  message.begin_extensions();
  add_object_record(message, object_ ? &object_.get()->object : nullptr, &made.get()->object);
  message.begin_payload();
  return made;
}

void outgoing_call::drop_object(const reference_handle& made) noexcept { made.get()->table->not_created(made); }

void outgoing_call::send_one_way() {
  const std::uint64_t bytes = message.size();
  peer_.notify(std::move(message));
  references_.sent();
  worker_->recorder().add(flight_event::one_way_sent, flight_time(began_), peer_.who.id(), 0, method_.id, bytes);
}

void outgoing_call::run() {
  ferry::agent& agent = worker_->agent();
  blocking_scope blocking;
  sync_call call;
  call.began = began_;
  std::atomic<bool> stopped{false};
  const argument_order arguments(message.reads);
  const call_ticket ticket = peer_.call(std::move(message), call, until_, true);
  references_.sent();
  facts_ = {worker_, &method_, peer_.who, limit_, inherited_, peer_.incarnation};
  const call_facts& facts = facts_;
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

    // Reading the clock is not cheap: it was read when the call was made, and is read again only when a wait ends early.
    for (bool waited = false; !call.done(); waited = true) {
      const bool cancel = stopped.load();
      if (cancel || (waited && until_.expired())) {
        call_phase phase{};
        if (agent.abandon(ticket, phase)) {
          const errc code = cancel ? errc::call_cancelled : errc::rpc_timeout;
          record_failure(facts, call, code, phase, "");
          trace_call(trace_event::kind::call_end, facts, call.call_id);
          agent.finished_calls(1);
          references_.query();
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
  if (call.failed_) {
    references_.query();
    std::rethrow_exception(failure_of(facts, call.code_, call.phase_, call.detail_));
  }
  settle(references_, call.reply_);
  reply = std::move(call.reply_);
  if (!reply.streams.empty()) take_over_streams();
}

// The caller's streams wait for the result; the calling thread does not.
void outgoing_call::take_over_streams() {
  for (const stream& each : reply.streams) current_stream(each.device()).wait(each);
  for (const tensor& each : reply.tensors) each.storage().record_use(current_stream(each.device()));
}

}  // namespace ferry::inline v0::detail

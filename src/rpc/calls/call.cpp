#include <ferry/rpc/call.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/detail/futex.hpp>
#include <ferry/base/log.hpp>
#include <ferry/device/current.hpp>

#include "../../base/coarse_clock.hpp"
#include "../../device/capture.hpp"
#include "../../transport/reactor/held_output.hpp"
#include "../../wire/read_marks.hpp"
#include "../../wire/send_limits.hpp"
#include "../pipeline/interceptor_table.hpp"
#include "../pipeline/placement_record.hpp"
#include "../worker/worker_core.hpp"
#include "call_report.hpp"
#include "request_builder.hpp"

namespace ferry::inline v0::detail {
namespace {

// The caller's end of a blocking call; lives on its stack.
class sync_call final : public pending_call, public drive_condition {
 public:
  void on_reply(inbound_message&& reply) noexcept override {
    reply_ = std::move(reply);
    reply_.arrived = reply_.arrival();  // not when the caller has woken up
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

// Above a limit of this worker, it is an error of its call alone: a callee with the same limit would end the connection.
void check_request(const outgoing_message& request, const call_facts& facts) {
  try {
    check_to_send("the request", request, facts.worker->limits());
  } catch (const error& e) {
    throw_error(e.kind(), fmt::format("{}: {}", describe(facts), e.message()));
  }
}

std::span<const stream> streams_of(const call_options& options) noexcept {
  return {options.streams.first(), options.streams.count()};
}

}  // namespace

outgoing_call::outgoing_call(std::shared_ptr<worker_core> worker, const to& destination, const method_entry& method,
                             call_mode mode)
    : streams_(streams_of(destination.options())),
      mode_(mode),
      stop_(destination.options().stop.get()),
      placement_(destination.options().placement.get()) {
  life_.of_one_thread = mode == call_mode::waiting;
  life_.facts.worker = std::move(worker);
  life_.facts.method = &method;
  life_.facts.limit = destination.options().timeout.value_or(life_.facts.worker->default_timeout());
  ferry::agent& agent = life_.facts.worker->agent();
  bound();
  if (!destination.by_id()) {
    begin(agent.open(destination.name(), until_));
    return;
  }
  peer_route there = agent.open(destination.id(), until_);
  if (!destination.name().empty() && there.who.name() != destination.name()) {
    throw_error(errc::unknown_worker,
                fmt::format("{} could not find destination worker_info(id={}, name={}) in its group: {} has its id",
                            to_string(agent.self()), destination.id().value, destination.name(), to_string(there.who)));
  }
  begin(std::move(there));
}

outgoing_call::outgoing_call(std::shared_ptr<worker_core> worker, call_place where, const call_options& options,
                             const method_entry& method, call_mode mode)
    : streams_(streams_of(options)), mode_(mode), stop_(options.stop.get()), placement_(options.placement.get()) {
  life_.of_one_thread = mode == call_mode::waiting;
  life_.facts.worker = std::move(worker);
  life_.facts.method = &method;
  life_.facts.limit = options.timeout.value_or(life_.facts.worker->default_timeout());
  life_.facts.hint = where.hint;
  life_.facts.check_place = where.check;
  life_.facts.place = where.what;
  life_.held = std::move(where.held);
  (void)life_.facts.worker->agent();  // throws once it has been shut down
  bound();
  begin({where.find(where.what, until_)});
}

outgoing_call::~outgoing_call() = default;

// The deadline of the handler that makes the call bounds it.
void outgoing_call::bound() {
  call_facts& facts = life_.facts;
  until_ = deadline::after(facts.limit, began_);
  if (const call_context* context = thread_context()) {
    if (context->deadline() < until_) {
      until_ = context->deadline();
      facts.inherited = true;
      facts.limit = std::max<std::chrono::nanoseconds>(until_.remaining(), std::chrono::nanoseconds(1));
    }
  }
}

void outgoing_call::begin(peer_route&& there) {
  call_facts& facts = life_.facts;
  target_ = there.target();
  facts.peer = std::move(there.who);
  facts.incarnation = there.incarnation;
  handles_ = message_handles(*facts.worker, target_);
  if (stop_ && stop_->stop_requested()) {
    throw call_cancelled(describe(facts) + ": its stop token was stopped before it was sent");
  }
  if (may_have_expired(until_) && until_.expired()) {
    throw rpc_timeout(describe(facts) + (facts.inherited
                                             ? std::string(": the deadline of the running handler has passed")
                                             : fmt::format(": its timeout of {} was over before it was sent",
                                                           in_milliseconds(facts.limit))));
  }
  message.header = request_header(*facts.method, until_, began_, mode_ == call_mode::one_way);
  message.handles = &handles_;
}

void outgoing_call::seal() {
  try {
    if (!message.tensors.empty() || placement_) place_tensors();
    if (placement_ && awaited()) add_placement_record(message, *placement_);
    handles_.seal(message);
    life_.carried = handles_.release();
    const context_values values = current_values();
    const incoming_call* here = thread_call();
    if (worker()->interceptors().sees_all_requests() || interceptor_table::requests_watched() ||
        values.has_travelling() || (here && here->has_hooks())) {
      let_interceptors_see(values);
    }
    check_request(message, life_.facts);
  } catch (...) {
    life_.not_accepted(std::current_exception());
    throw;
  }
}

bool outgoing_call::gives_values() {
  if (!message.keeps_its_tensors() || !worker()->agent_unchecked().within_process(target_)) return false;
  try {
    message.finish();
  } catch (...) {
    life_.not_accepted(std::current_exception());
    throw;
  }
  if (stop_) {
    own_stop_ = *stop_;
    stop_ = &own_stop_;
  }
  return true;
}

void outgoing_call::let_interceptors_see(const context_values& values) {
  incoming_call* here = thread_call();
  outgoing_request request(message, life_.facts, life_.hooks, until_, awaited(), mode_ == call_mode::waiting,
                           mode_ == call_mode::waiting && here && incoming_call::on_this_thread() == here);
  if (here) here->on_nested_request(request);
  values.for_each_travelling([&](const travelling_value& each) { each.on_request(request); });
  worker()->interceptors().on_request(request);
  // Another thread tells the hooks of the end, unless this one waits for it.
  if (!life_.hooks.empty() && mode_ != call_mode::waiting) life_.context = captured_context::current();
}

void outgoing_call::place_tensors() {
  worker()->agent().place_request(target_, message, placement_);
  const bool reads = awaited() && std::any_of(message.tensors.begin(), message.tensors.end(), [](const tensor& each) {
                       return !operations_of(each.device().kind).immediate;
                     });
  if (reads) message.reads = std::make_shared<read_marks>();
}

void outgoing_call::send_one_way() {
  const std::uint64_t bytes = message.size();
  try {
    worker()->agent().notify(target_, std::move(message));  // agent() throws once it has been shut down
  } catch (...) {
    const std::exception_ptr why = not_sent(life_.facts, std::current_exception());
    life_.not_accepted(why);
    std::rethrow_exception(why);
  }
  life_.accepted_one_way(began_, bytes);
}

void outgoing_call::run() {
  sync_call call;
  call.began = began_;
  std::atomic<bool> stopped{false};
  const argument_order arguments(message.reads);
  std::optional<blocking_scope> blocking;
  call_ticket ticket;
  try {
    ferry::agent& agent = worker()->agent();  // throws once it has been shut down
    blocking.emplace();
    ticket = agent.call(target_, std::move(message), call, until_, reply_wait::at_once);
  } catch (...) {
    const std::exception_ptr why = not_sent(life_.facts, std::current_exception());
    life_.not_accepted(why);
    std::rethrow_exception(why);
  }
  held_output::release();
  ferry::agent& agent = worker()->agent_unchecked();
  life_.accepted(call);
  const auto stop = [&]() noexcept {
    stopped.store(true);
    call.poke();
    agent.interrupt(ticket);
  };
  // Ends with what the agent says, or with the caller's own decision. The wait is over before hooks are told.
  const auto fail = [&](errc code, call_phase phase, const std::string& detail) {
    blocking.reset();
    life_.failed(call, code, phase, detail);
    life_.end(call);
    std::rethrow_exception(failure_of(life_.facts, code, phase, detail));
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
        if (agent.abandon(ticket, phase)) fail(cancel ? errc::call_cancelled : errc::rpc_timeout, phase, "");
        call.sleep_until_done();  // it is being completed by another thread
        break;
      }
      if (!agent.wait(ticket, finished, until_)) call.sleep(until_);
    }
  }
  if (call.failed_) fail(call.code_, call.phase_, call.detail_);
  blocking.reset();
  reply = std::move(call.reply_);
  try {
    if (!reply.streams.empty()) take_over_streams();
  } catch (const error& problem) {
    life_.failed(call, problem.kind(), call_phase::waiting_for_reply, "");
    life_.end(call);
    throw;
  }
  life_.replied(call, reply);
  const std::exception_ptr refused = life_.tell_hooks(reply);
  life_.end(call);
  if (refused) std::rethrow_exception(refused);
}

// The caller's streams wait for the result; the calling thread does not.
void outgoing_call::take_over_streams() {
  for (const stream& each : reply.streams) {
    const stream current = current_stream(each.device());
    refuse_capture(current, "wait for the result of a call");
    current.wait(each);
  }
  for (const tensor& each : reply.tensors) each.storage().record_use(current_stream(each.device()));
}

}  // namespace ferry::inline v0::detail

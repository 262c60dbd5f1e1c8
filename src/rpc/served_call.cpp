#include <ferry/rpc/served_call.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

deadline deadline_of(const frame_header& request, clock::time_point now) noexcept {
  if ((request.flags & frame_no_deadline) != 0) return {};
  constexpr std::uint64_t most = 100ULL * 365 * 24 * 3600 * 1'000'000;  // microseconds; more is as good as never
  if (request.timeout_us >= most) return {};
  return deadline(now + std::chrono::microseconds(request.timeout_us));
}

void trace_handler(trace_event::kind what, const method_entry& method, const worker_core& worker, worker_id caller,
                   std::uint64_t id) noexcept {
  const std::string peer = std::to_string(caller.value);
  trace({what, method.name, worker.agent_unchecked().self().name(), peer, id,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
}

}  // namespace

served_call::served_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel, worker_id from,
                         inbound_message&& request, clock::time_point now)
    : held_method{worker->serves(request.header.method) ? method_hold::find(request.header.method) : method_hold()},
      call_context(worker, deadline_of(request.header, now), from),
      worker_(std::move(worker)),
      channel_(std::move(channel)),
      request_(std::move(request)),
      arrived_(now),
      bytes_(request_.header.message_bytes()),
      is_one_way_((request_.header.flags & frame_one_way) != 0) {
  run = [](work* self) noexcept {
    auto* call = static_cast<served_call*>(self);
    // Again, if it was held back.
    call->had_to_wait_ = call->tried_ || handler_pool::runs_what_was_queued();
    call->tried_ = true;
    if (!call->one_way() && !call->channel_->may_begin(*call, *call->worker_)) return;
    call->serve();
    call->drop_reference();
  };
  worker_->recorder().add(flight_event::request_received, flight_time(now), from, request_.header.call_id,
                          request_.header.method, bytes_);
  // Before the connection is read on: a cancellation may be the very next frame, long before a thread runs the handler.
  if (one_way()) {
    worker_->enlist_one_way(*this);
  } else {
    channel_->begin_call(request_.header.call_id, *this);
  }
}

served_call::~served_call() {
  if (stage_ != stage::done) done();  // never begun: the worker could not queue it
}

const wire_limits& served_call::limits() const noexcept { return worker_->limits(); }

std::string served_call::describe() const {
  return fmt::format("{}: '{}' called by worker {}", to_string(worker_->agent_unchecked().self()),
                     method() ? method()->name : fmt::format("method {:016x}", request_.header.method), caller().value);
}

// While the request is there: until done().
void served_call::record(flight_event what, std::uint64_t bytes, errc code) noexcept {
  flight_recorder& recorder = worker_->recorder();
  if (!recorder.on()) return;
  recorder.add(what, flight_time::now(), caller(), request_.header.call_id, request_.header.method, bytes, code);
}

void served_call::serve() noexcept {
  progress_.store(progress::running, std::memory_order_relaxed);
  context_scope scope(this);
  const method_entry* called = method();
  const bool traced = trace_enabled() && called;
  const std::uint64_t id = request_.header.call_id;  // the answer, perhaps on another thread, takes the request along
  if (had_to_wait_) record(flight_event::handler_begun, 0);
  if (traced) trace_handler(trace_event::kind::handler_begin, *called, *worker_, caller(), id);
  try {
    check_extensions(request_.extensions);
    if (!called) {
      throw_error(errc::unknown_method, worker_->serves(request_.header.method)
                                            ? ""
                                            : "it serves a list of methods (ferry::serve<...>() or "
                                              "worker_config::serve), which does not contain this one");
    }
    if (called->signature != request_.header.signature) throw_error(errc::signature_mismatch, called->signature_text);
    called->serve(*this);
  } catch (...) {
    if (!later_) fail(std::current_exception());
  }
  if (later_) {
    worker_->recorder().add(flight_event::handler_returned, flight_time::now(), caller(), id, called->id, 0);
  }
  if (traced) trace_handler(trace_event::kind::handler_end, *called, *worker_, caller(), id);
}

// The answer may be there already.
void served_call::answer_later() noexcept {
  later_ = true;
  worker_->count_later(1);
  auto expected = progress::running;
  if (!progress_.compare_exchange_strong(expected, progress::later, std::memory_order_relaxed)) {
    worker_->count_later(-1);
  }
}

served_call_info served_call::describe_now(const worker_info& from, std::uint64_t id, clock::time_point now) const {
  const progress reached = progress_.load(std::memory_order_relaxed);
  return {.id = id,
          .method = method() ? method()->name : "a method that it does not serve",
          .caller = from,
          .phase = reached == progress::queued                  ? served_phase::queued
                   : waits_.load(std::memory_order_relaxed) > 0 ? served_phase::waiting
                   : reached == progress::later                 ? served_phase::later
                                                                : served_phase::running,
          .age = std::max(now - arrived_, clock::duration{}),
          .until = call_context::deadline(),
          .bytes = bytes_,
          .one_way = is_one_way_,
          .unwanted = stop_requested()};
}

void served_call::send(outgoing_message&& reply) {
  reply.header.kind = frame_kind::reply;
  record(flight_event::request_answered, reply.size());
  channel_->reply(request_.header.call_id, std::move(reply));
  done();
}

void served_call::done() noexcept {
  stage_ = stage::done;
  if (late_ && progress_.exchange(progress::done, std::memory_order_relaxed) == progress::later) {
    worker_->count_later(-1);
  }
  if (one_way()) {
    record(flight_event::request_done, 0);
    worker_->delist_one_way(*this);
  } else {
    channel_->end_call(request_.header.call_id, *this);
  }
  request_ = {};  // the context may live on in continuations; what was received need not
  channel_->handled(bytes_);
  channel_.reset();
  worker_->request_done();
}

void served_call::fail(const std::exception_ptr& reason) noexcept {
  if (stage_ == stage::done) return;  // the answer has gone out; nothing is left to tell
  try {
    const std::string text = describe_exception(reason);
    errc code = stage_ == stage::decoding ? errc::bad_arguments : errc::bad_result;
    std::string detail = text;  // for the caller, who has the rest
    std::string logged = text;
    if (stage_ != stage::running) {
      try {
        std::rethrow_exception(reason);
      } catch (const error& e) {
        if (e.kind() == errc::unknown_method || e.kind() == errc::signature_mismatch ||
            e.kind() == errc::unknown_extension) {
          code = e.kind();
          detail = e.message();
        }
        if (e.kind() == errc::signature_mismatch) {
          logged = fmt::format("signature_mismatch: here it is {}, and the caller has another signature", detail);
        }
      } catch (...) {  // NOLINT(bugprone-empty-catch): `text` says it
      }
    }
    log(stage_ == stage::running ? log_level::warning : log_level::error,
        fmt::format("{} {}: {}", describe(),
                    stage_ == stage::decoding  ? "was not run"
                    : stage_ == stage::running ? "threw"
                                               : "has a result that cannot be sent",
                    logged));
    record(flight_event::request_failed, 0, stage_ == stage::running ? errc::remote_exception : code);
    if (one_way()) return done();
    outgoing_message answer;
    if (stage_ == stage::running) {
      answer.header.kind = frame_kind::exception;
      answer.begin_payload();
      encode_exception(reason, answer);
    } else {
      answer.header.kind = frame_kind::failure;
      answer.header.code = static_cast<std::uint32_t>(code);
      answer.begin_payload();
      encode_values<std::string>(answer.bytes, answer.tensors, detail);
    }
    channel_->reply(request_.header.call_id, std::move(answer));
    done();
  } catch (...) {  // an encoder of a user's exception threw, or the text is above the limits
    fail_plainly();
  }
}

void served_call::fail_plainly() noexcept {
  try {
    log(log_level::error,
        describe() + ": the error could not be encoded: " + describe_exception(std::current_exception()));
    outgoing_message answer;
    answer.header.kind = frame_kind::failure;
    answer.header.code = static_cast<std::uint32_t>(errc::remote_exception);
    answer.begin_payload();
    encode_values<std::string>(answer.bytes, answer.tensors,
                               std::string("the method failed, and its error could not be encoded"));
    channel_->reply(request_.header.call_id, std::move(answer));
  } catch (const std::exception& e) {
    log(log_level::error, std::string("an error could not be sent to the caller: ") + e.what());
  }
  done();
}

}  // namespace ferry::inline v0::detail

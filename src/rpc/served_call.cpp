#include <ferry/rpc/served_call.hpp>

#include <utility>

#include <fmt/format.h>
#include <ferry/base/log.hpp>

#include "worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

deadline deadline_of(const frame_header& request) noexcept {
  if ((request.flags & frame_no_deadline) != 0) return {};
  constexpr std::uint64_t most = 100ULL * 365 * 24 * 3600 * 1'000'000;  // microseconds; more is as good as never
  if (request.timeout_us >= most) return {};
  return deadline(clock::now() + std::chrono::microseconds(request.timeout_us));
}

void trace_handler(trace_event::kind what, const method_entry& method, const worker_core& worker, worker_id caller,
                   std::uint64_t id) noexcept {
  const std::string peer = std::to_string(caller.value);
  trace({what, method.name, worker.agent_unchecked().self().name(), peer, id,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
}

}  // namespace

served_call::served_call(std::shared_ptr<worker_core> worker, std::shared_ptr<reply_channel> channel, worker_id from,
                         inbound_message&& request)
    : held_method{worker->serves(request.header.method) ? method_hold::find(request.header.method) : method_hold()},
      call_context(worker, deadline_of(request.header), from),
      worker_(std::move(worker)),
      channel_(std::move(channel)),
      request_(std::move(request)) {
  run = [](work* self) noexcept {
    auto* call = static_cast<served_call*>(self);
    call->serve();
    call->drop_reference();
  };
  // Before the connection is read on: a cancellation may be the very next frame, long before a thread runs the handler.
  if (!one_way()) channel_->begin_call(request_.header.call_id, *this);
}

served_call::~served_call() {
  if (stage_ != stage::done) done();  // never begun: the worker could not queue it
}

const wire_limits& served_call::limits() const noexcept { return worker_->limits(); }

std::string served_call::describe() const {
  return fmt::format("{}: '{}' called by worker {}", to_string(worker_->agent_unchecked().self()),
                     method() ? method()->name : fmt::format("method {:016x}", request_.header.method), caller().value);
}

void served_call::serve() noexcept {
  context_scope scope(this);
  const method_entry* called = method();
  const bool traced = trace_enabled() && called;
  const std::uint64_t id = request_.header.call_id;  // the answer, perhaps on another thread, takes the request along
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
  if (traced) trace_handler(trace_event::kind::handler_end, *called, *worker_, caller(), id);
}

void served_call::send(outgoing_message&& reply) {
  reply.header.kind = frame_kind::reply;
  channel_->reply(request_.header.call_id, std::move(reply));
  done();
}

void served_call::done() noexcept {
  stage_ = stage::done;
  if (!one_way()) channel_->end_call(request_.header.call_id, *this);
  request_ = {};  // the context may live on in continuations; what was received need not
  channel_->handled();
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

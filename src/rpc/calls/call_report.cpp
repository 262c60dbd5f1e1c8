#include "call_report.hpp"

#include <chrono>

#include <fmt/format.h>

#include "../references/protocol/reference_records.hpp"
#include "../references/table/reference_table.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

// What the caller has recorded about a peer that did not answer in time.
std::string hint(const call_facts& facts, call_phase phase) {
  if (phase == call_phase::connecting) {
    return "; no connection to it was open (does it run, and can it be reached from here?)";
  }
  std::string text;
  if (on_object(facts.method->flavour) && phase == call_phase::waiting_for_reply) {
    text =
        "; a call on an object may wait there for its turn or for the object to be made (the log of its owner says so)";
  }
  const auto silence = facts.worker->agent_unchecked().inspection().silence(facts.peer.id());
  if (!silence) return text;
  const double seconds = in_seconds(*silence);
  return text + fmt::format("; it was last heard of {:.1f} s ago", seconds);
}

void record(const call_facts& facts, flight_event what, flight_time at, const pending_call& call, std::uint64_t bytes,
            errc code = {}, std::string_view text = {}) noexcept {
  flight_recorder& recorder = facts.worker->recorder();
  if (text.empty()) {
    recorder.add(what, at, facts.peer.id(), call.call_id, facts.method->id, bytes, code);
  } else {
    recorder.add(what, at, facts.peer.id(), call.call_id, facts.method->id, bytes, code, text);
  }
}

}  // namespace

std::string describe(const call_facts& facts) {
  return fmt::format("call of '{}' from {} to {}", facts.method->name,
                     to_string(facts.worker->agent_unchecked().self()), to_string(facts.peer));
}

std::string in_milliseconds(timeout value) {
  if (!value.is_set() || value.is_never()) return "none";
  return fmt::format("{} ms", std::chrono::duration<double, std::milli>(value.duration()).count());
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
  const std::string peer = std::to_string(facts.peer.id().value);
  trace({what, facts.method->name, facts.worker->agent_unchecked().self().name(), peer, id,
         std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now().time_since_epoch()).count()});
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

void settle(handed_references& references, const inbound_message& reply) noexcept {
  if (reply.header.kind == frame_kind::failure) {
    references.query();
  } else {
    references.arrived();
  }
}

// ---------------------------------------------------------------- replies

const wire_limits& reply_limits(const call_facts& facts) noexcept { return facts.worker->limits(); }

namespace {

// "<what> could not be decoded". Without memory: std::bad_alloc.
template <class Decode>
auto decode_part(const call_facts& facts, std::string_view what, const Decode& decode) {
  try {
    return decode();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    const std::string reason = describe_exception(current_error());
    throw_error(errc::bad_result, fmt::format("{}: {} could not be decoded: {}", describe(facts), what, reason));
  }
}

}  // namespace

void check_reply(const call_facts& facts, inbound_message& reply) {
  if (!reply.extensions.empty()) {
    try {
      const reference_records records = read_records(reply.extensions);
      if (!records.references.empty()) {
        reply.handles = facts.worker->references().receive(records, {facts.peer.id(), facts.incarnation}, nullptr);
      }
    } catch (const error& e) {
      throw_error(e.kind(), fmt::format("{}: in the reply: {}", describe(facts), e.message()));
    }
  }
  if (reply.failure) {
    try {
      std::rethrow_exception(reply.failure);
    } catch (const error& e) {
      throw_error(e.kind(),
                  fmt::format("{}: the tensors of the result could not be received: {}", describe(facts), e.message()));
    }
  }
  if (reply.header.kind == frame_kind::reply) return;
  if (reply.header.kind == frame_kind::exception) {
    std::rethrow_exception(decode_part(facts, "the exception that the method threw",
                                       [&] { return decode_exception(reply, reply_limits(facts)); }));
  }
  const auto code = static_cast<errc>(reply.header.code);
  const auto detail = decode_part(facts, fmt::format("why it failed ({})", errc_name(code)), [&] {
    std::string text;
    decode_values(reply.payload, reply.tensors, reply_limits(facts), text);
    return text;
  });
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
  std::string reason = describe_exception(current_error());
  throw_error(errc::bad_result, fmt::format("{}: the result could not be decoded: {}", describe(facts), reason));
}

}  // namespace ferry::inline v0::detail

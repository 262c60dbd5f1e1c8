#include "call_report.hpp"

#include <chrono>
#include <typeinfo>

#include <fmt/format.h>

#include "../methods/method_table.hpp"
#include "../pipeline/interceptor_table.hpp"
#include "../worker/worker_core.hpp"

namespace ferry::inline v0::detail {
namespace {

// What the caller has recorded about a peer that did not answer in time.
std::string hint(const call_facts& facts, call_phase phase) {
  if (phase == call_phase::connecting) {
    return "; no connection to it was open (does it run, and can it be reached from here?)";
  }
  std::string text;
  if (facts.hint && phase == call_phase::waiting_for_reply) text = facts.hint;
  const auto silence = facts.worker->agent_unchecked().inspection().silence(facts.peer.id());
  if (!silence) return text;
  const double seconds = in_seconds(*silence);
  return text + fmt::format("; it was last heard of {:.1f} s ago", seconds);
}

}  // namespace

namespace {
// What the caller has written: to_here() is a call of value_of().
std::string name_in_code(std::string_view method) {
  constexpr std::string_view fetch = "ferry::v0::detail::value_of<";
  if (!method.starts_with(fetch)) return std::string(method);
  return fmt::format("to_here<{}", method.substr(fetch.size()));
}
}  // namespace

std::string describe(const call_facts& facts) {
  return fmt::format("call of '{}' from {} to {}", name_in_code(facts.method->name),
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

namespace {
void check_outcome(const call_facts& facts, inbound_message& reply);
}

void check_reply(const call_facts& facts, inbound_message& reply) {
  try {
    check_outcome(facts, reply);
  } catch (const error& e) {
    // The callee knows that the object is not there, and the caller may know why.
    if (facts.check_place && e.kind() == errc::reference_deleted) facts.check_place(facts.place);
    throw;
  }
}

namespace {
void check_outcome(const call_facts& facts, inbound_message& reply) {
  try {
    incoming_reply view(reply, facts);
    facts.worker->interceptors().on_reply_records(view);
  } catch (const error& e) {
    throw_error(e.kind(), fmt::format("{}: in the reply: {}", describe(facts), e.message()));
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
      if (!detail.empty() && detail != no_such_method) {
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
      throw_error(code, fmt::format("{}: the callee could not encode its answer: {}", describe(facts), detail));
    default:
      throw_error(errc_name(code) == "unknown" ? errc::remote_exception : code,
                  fmt::format("{}: {}", describe(facts), detail));
  }
}
}  // namespace

std::exception_ptr not_sent(const call_facts& facts, const std::exception_ptr& thrown) noexcept {
  std::exception_ptr named = thrown;
  (void)caught([&] {
    try {
      std::rethrow_exception(thrown);
    } catch (const error& e) {
      if (e.kind() == errc::limit_exceeded)
        named = make_error(e.kind(), fmt::format("{}: {}", describe(facts), e.message()));
    } catch (...) {  // NOLINT(bugprone-empty-catch): it is passed on as it is
    }
  });
  return named;
}

void throw_not_encoded(const call_facts& facts, const error& problem) {
  try {
    throw_error(problem.kind(), fmt::format("{}: in its arguments: {}", describe(facts), problem.message()));
  } catch (const error& named) {
    if (typeid(named) == typeid(problem)) throw;
  }
  throw;  // of a type of the application's, or with more than a kind and a text
}

void throw_bad_result(const call_facts& facts) {
  std::string reason = describe_exception(current_error());
  throw_error(errc::bad_result, fmt::format("{}: the result could not be decoded: {}", describe(facts), reason));
}

}  // namespace ferry::inline v0::detail

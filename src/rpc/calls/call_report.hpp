#pragma once

// What a call reports when it ends: error texts, flight recorder entries, trace events.

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include <ferry/base/log.hpp>
#include <ferry/rpc/call.hpp>

namespace ferry::inline v0::detail {

/// "call of 'f' from worker0 to worker1"
std::string describe(const call_facts& facts);
/// Of a timeout; "none".
std::string in_milliseconds(timeout value);
/// The error of a call that ended without a reply.
std::exception_ptr failure_of(const call_facts& facts, errc code, call_phase phase, const std::string& detail);

void trace_call(trace_event::kind what, const call_facts& facts, std::uint64_t id) noexcept;
void record_start(const call_facts& facts, const pending_call& call) noexcept;
void record_reply(const call_facts& facts, const pending_call& call, const inbound_message& reply) noexcept;
void record_failure(const call_facts& facts, const pending_call& call, errc code, call_phase phase,
                    const std::string& detail) noexcept;

/// A callee that answered a request has taken its references, unless it could not decode the request.
void settle(handed_references& references, const inbound_message& reply) noexcept;

}  // namespace ferry::inline v0::detail

#pragma once

// The texts of the errors that a call ends with.

#include <cstdint>
#include <exception>
#include <string>

#include <ferry/rpc/call.hpp>

namespace ferry::inline v0::detail {

/// "call of 'f' from worker0 to worker1"
std::string describe(const call_facts& facts);
/// Of a timeout; "none".
std::string in_milliseconds(timeout value);
/// What the agent threw instead of sending: an error of a limit does not say of which call it is.
std::exception_ptr not_sent(const call_facts& facts, const std::exception_ptr& thrown) noexcept;
/// The error of a call that ended without a reply.
std::exception_ptr failure_of(const call_facts& facts, errc code, call_phase phase, const std::string& detail);

}  // namespace ferry::inline v0::detail

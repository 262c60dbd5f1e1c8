#pragma once

// Limits, applied to what a worker sends, its own and those of the receiver: that can only end the connection, and with it other
// calls.

#include <string_view>

#include <ferry/wire/limits.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

/// Throws errc::limit_exceeded, which names the limit and what the message has, if a receiver with these limits refuses the
/// message; `what` it is called there. `receiver`: whose limits these are, if not the sender's own. Call after the last extension
/// record.
void check_to_send(std::string_view what, const outgoing_message& message, const wire_limits& limits,
                   std::string_view receiver = {});

}  // namespace ferry::inline v0::detail

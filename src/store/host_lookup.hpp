#pragma once

// Host names with a deadline, and the address of this machine that others can reach.

#include <optional>
#include <string>

#include "../base/net/socket_address.hpp"
#include "interrupt.hpp"

namespace ferry::inline v0::detail {

/// True for "localhost" and loopback addresses: a host that can only be this machine.
bool spells_loopback(const std::string& host);

/// The same, waiting no longer than `until`; a slower lookup continues in the background. Empty addresses with a
/// problem if it failed, expired or was interrupted.
resolution resolve_host(const std::string& host, std::uint16_t port, const interrupt& stop, deadline until);

/// The source address, in `family`, of this machine's traffic to remote hosts; nothing if it has no route.
std::optional<socket_address> routed_address(int family);

}  // namespace ferry::inline v0::detail

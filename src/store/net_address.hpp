#pragma once

// IP addresses and names of the store: parsing, resolving, printing.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "interrupt.hpp"

namespace ferry::inline v0::detail {

/// A socket address of IPv4 or IPv6.
struct net_address {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }
  [[nodiscard]] const sockaddr* raw() const noexcept { return reinterpret_cast<const sockaddr*>(&bytes); }
  /// The IP address with its scope id, without port.
  [[nodiscard]] std::string ip() const;
  [[nodiscard]] bool is_loopback() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
};

/// Parses `host` as an address ("10.0.0.1", "fe80::1%eth0"); nothing if it is a name.
std::optional<net_address> parse_address(const std::string& host, std::uint16_t port);

/// True for "localhost" and loopback addresses: a host that can only be this machine.
bool spells_loopback(const std::string& host);

struct resolution {
  std::vector<net_address> addresses;
  std::string problem;  ///< why there are none
};
/// Resolves a name, waiting no longer than `until`; a slower lookup continues in the background. Empty addresses with a
/// problem if it failed, expired or was interrupted.
resolution resolve_host(const std::string& host, std::uint16_t port, const interrupt& stop, deadline until);

/// The source address, in `family`, of this machine's traffic to remote hosts; nothing if it has no route.
std::optional<net_address> routed_address(int family);

/// "host:port", with brackets around an IPv6 address.
std::string host_and_port(const std::string& host, std::uint16_t port);

}  // namespace ferry::inline v0::detail

#pragma once

// Socket addresses of every family as values, and the resolution of host names.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

namespace ferry::inline v0::detail {

struct socket_address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  static socket_address copy(const void* address, socklen_t size);
  /// Empty unless `host` is an IP literal; IPv6 may have a scope id.
  static std::optional<socket_address> from_literal(const std::string& host, std::uint16_t port);
  /// "@name" is an abstract name, "/path" a path. At most 107 bytes.
  static socket_address from_unix(std::string_view name);
  /// The size is 0 if the descriptor has no such end.
  static socket_address local_end(int descriptor);
  static socket_address remote_end(int descriptor);

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  /// The IP literal, with the scope id of a link-local address. Throws errc::bad_address for other families.
  [[nodiscard]] std::string host() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  [[nodiscard]] bool is_link_local() const noexcept;
  /// 127.0.0.0/8, ::1, and the former mapped to IPv6.
  [[nodiscard]] bool is_loopback() const noexcept;
  /// "10.0.0.2:4711", "[::1]:4711", "@name", "/path"; "unnamed" for an unbound unix socket.
  [[nodiscard]] std::string text() const;
  /// Whether both denote the same end, port included.
  [[nodiscard]] bool same_as(const socket_address& other) const noexcept;
};

struct resolution {
  std::vector<socket_address> addresses;  ///< in the resolver's order
  std::string problem;                    ///< why there are none
};
/// The IP addresses of a host name or literal. May block for as long as the resolver does.
resolution resolve_host(const std::string& host, std::uint16_t port);

/// For a link-local IPv6 literal whose scope id is none of this machine's: the address on each of the interfaces here that have a
/// link-local one and are up. Else empty.
std::vector<socket_address> link_local_on_each_interface(const std::string& host, std::uint16_t port);

/// "host:port", with brackets around an IPv6 address.
std::string host_and_port(std::string_view host, std::uint16_t port);

}  // namespace ferry::inline v0::detail

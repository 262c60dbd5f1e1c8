#pragma once

// Addresses of listening workers, and the addresses of this machine.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ferry::inline v0 {

/// A host name or IP literal (IPv6 without brackets, with its scope id: "fe80::1%eth0") and a port.
struct host_port {
  std::string host;
  std::uint16_t port = 0;

  /// Reads "host:port" or "[v6]:port"; the port is 1..65535. Throws errc::bad_address naming the text.
  static host_port parse(std::string_view text);
  /// The same form again; IPv6 literals in brackets.
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const host_port&, const host_port&) = default;
};

/// The address of a listening worker: "tcp://host:port", "tcp://[fe80::1%eth0]:80", "unix:@abstract-name",
/// "unix:/path", "shm:@abstract-name", "inproc:token". Parsing and printing are inverse to each other.
struct address {
  std::string scheme;      ///< "tcp", "unix", "shm" or "inproc"
  std::string host;        ///< tcp: the host; unix and shm: "@name" or "/path"; inproc: the token
  std::uint16_t port = 0;  ///< tcp only

  /// Throws errc::bad_address naming the text and what is wrong with it.
  static address parse(std::string_view text);
  [[nodiscard]] std::string to_string() const;
  friend bool operator==(const address&, const address&) = default;
};

/// True if `text` begins with "<scheme>:".
[[nodiscard]] bool has_scheme(std::string_view text, std::string_view scheme) noexcept;

/// Whether `host` is "localhost" or a literal of the loopback network (127.0.0.0/8, ::1, ::ffff:127.0.0.0/104).
[[nodiscard]] bool is_loopback(std::string_view host);
/// Whether `host` is the literal for "any address": 0.0.0.0 or ::.
[[nodiscard]] bool is_unspecified(std::string_view host);
/// Whether `host` is an IPv6 literal, with or without scope id.
[[nodiscard]] bool is_ipv6_literal(std::string_view host);

/// The addresses of the network interface `name` that is up, IPv4 first, link-local IPv6 (with scope id) last; empty if
/// there is no such interface. Throws errc::system_failure.
[[nodiscard]] std::vector<std::string> interface_addresses(const std::string& name);
/// The addresses by which other machines may reach this one: those of all interfaces that are up, except loopback and
/// link-local; IPv4 first. Throws errc::system_failure.
[[nodiscard]] std::vector<std::string> routable_addresses();

/// The address that a worker should listen on and publish, given the host of the store as the user wrote it and the
/// local address of its connection to the store. That is the local address, except where a store on this machine was
/// reached through loopback under a name that means something else to other machines (the "127.0.1.1 myhost" of
/// Debian's /etc/hosts): then it is the first routable address. Throws errc::system_failure.
[[nodiscard]] std::string choose_listen_host(std::string_view store_host, std::string_view local_address);

}  // namespace ferry::inline v0

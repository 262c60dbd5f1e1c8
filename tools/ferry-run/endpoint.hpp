#pragma once

// Addresses and sockets.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <sys/socket.h>

namespace ferry_run {

struct endpoint {
  std::string host;
  std::uint16_t port = 0;
  [[nodiscard]] std::string text() const;  ///< "host:port", with brackets around an IPv6 address
};

struct socket_address {
  sockaddr_storage bytes{};
  socklen_t size = 0;
};

/// The addresses of `where`; empty, with the reason in `problem`, if the host is not known.
std::vector<socket_address> resolve(const endpoint& where, std::string& problem);

/// Whether one of them is an address of this machine.
bool is_own(const std::vector<socket_address>& addresses);

/// A non-blocking listening socket. For a name: on all addresses, since a machine may resolve its own name to loopback.
/// -1 with errno if that is not possible.
int listen_at(const endpoint& where);

/// The next connection of a listening socket, not blocking; -1 with errno.
int accept_from(int listener);

/// A connection, not blocking, made within `limit`; -1 with the reason in `problem`.
int connect_to(const std::vector<socket_address>& addresses, std::chrono::milliseconds limit, std::string& problem);

/// A TCP port without listener at any address, chosen by the kernel. Another process may take it before it is used,
/// which is unlikely: the kernel goes through the whole range before it assigns a port again. Throws std::system_error.
std::uint16_t free_port();

}  // namespace ferry_run

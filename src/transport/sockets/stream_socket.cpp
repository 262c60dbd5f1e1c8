#include "stream_socket.hpp"

#include <cerrno>

#include <netinet/in.h>
#include <sys/socket.h>

#include <ferry/base/error.hpp>

#include "../../base/net/socket_options.hpp"

namespace ferry::inline v0::detail {

unique_fd open_stream_socket(int family) {
  int failure = 0;
  auto opened = open_stream_socket(family, failure);
  if (!opened) throw_errno(errc::system_failure, "cannot open a socket", failure);
  return opened;
}

unique_fd open_stream_socket(int family, int& system_error) noexcept {
  unique_fd opened(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  system_error = opened ? 0 : errno;
  return opened;
}

void tune_connection(int descriptor, int family) noexcept {
  if (family == AF_UNIX) {
    // A tensor's bytes are passed in few large pieces instead of one wake-up per 200 KiB.
    constexpr int buffer = 4 << 20;
    set_socket_option(descriptor, SOL_SOCKET, SO_SNDBUF, buffer);
    return;
  }
  set_tcp_defaults(descriptor);
}

unique_fd listen_on(const socket_address& where, int& system_error) {
  auto socket = open_stream_socket(where.family());
  // Allows listening at once on a port whose previous connections are still in TIME_WAIT, but not on one with a
  // listener.
  if (where.family() != AF_UNIX) set_socket_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.family() == AF_INET6) {
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(where.storage).sin6_addr);
    set_socket_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1);
  }
  if (::bind(socket.get(), where.get(), where.size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    system_error = errno;
    return {};
  }
  system_error = 0;
  return socket;
}

}  // namespace ferry::inline v0::detail

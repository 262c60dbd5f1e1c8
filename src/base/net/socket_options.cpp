#include "socket_options.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace ferry::inline v0::detail {

void set_socket_option(int socket, int level, int name, int value) noexcept {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

void set_tcp_defaults(int socket) noexcept {
  set_socket_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_socket_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_socket_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_socket_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_socket_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace ferry::inline v0::detail

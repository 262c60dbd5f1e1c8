#pragma once

namespace ferry::inline v0::detail {

/// setsockopt(2) with an int; a socket that does not support the option keeps its default.
void set_socket_option(int socket, int level, int name, int value) noexcept;

/// TCP_NODELAY, and keepalive probes that detect a vanished machine within about a minute, also while nothing is sent.
void set_tcp_defaults(int socket) noexcept;

}  // namespace ferry::inline v0::detail

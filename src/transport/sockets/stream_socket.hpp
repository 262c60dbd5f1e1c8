#pragma once

#include "../../base/net/socket_address.hpp"
#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// A non-blocking stream socket that is not inherited by new programs. Throws errc::system_failure.
unique_fd open_stream_socket(int family);
/// The same; where the system refuses it, `system_error` receives errno and the result is empty.
unique_fd open_stream_socket(int family, int& system_error) noexcept;
/// Options of a connection: no delay and keep-alive probes for tcp, large buffers for unix. An option that the system
/// refuses is left at its default: each only improves speed or how soon a vanished machine is detected.
void tune_connection(int descriptor, int family) noexcept;
/// A listening socket on `where`. If the address is not available, `system_error` receives errno and the result is
/// empty.
unique_fd listen_on(const socket_address& where, int& system_error);

}  // namespace ferry::inline v0::detail

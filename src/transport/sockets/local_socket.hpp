#pragma once

// What the transports over unix sockets share.

#include <string>

#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// Why the peer is refused: only processes of the same user, or of root, may connect, because abstract names have no
/// file permissions.
std::string check_local_user(int descriptor);

/// A socket that listens under an abstract name that cannot be guessed, so that no other process can take the name first
/// or listen on it afterwards. Throws errc::system_failure.
unique_fd listen_under_fresh_name();

}  // namespace ferry::inline v0::detail

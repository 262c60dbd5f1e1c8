#pragma once

// File descriptors that travel over a unix socket (SCM_RIGHTS).

#include <cstddef>
#include <span>
#include <string_view>

#include "../../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

/// The most that one message may carry.
inline constexpr std::size_t most_passed_descriptors = 16;

/// Writes the bytes whole, with the descriptors, which stay the caller's: nothing else is on its way. Throws
/// errc::system_failure; `attempt` begins its text.
void send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                           std::string_view attempt);

struct received_with_descriptors {
  std::size_t bytes = 0;  ///< 0: the other end has closed the connection
  std::size_t descriptors = 0;
  bool short_of_descriptors = false;  ///< this process had none left for some that came
};
/// Reads what has arrived: what one send_with_descriptors() wrote, whole, for the kernel does not merge bytes that come with
/// descriptors with others; or what there is room for. Descriptors beyond `given` are closed, and counted.
/// Nothing has come where the peer has closed the connection. Throws errc::handshake_failed.
received_with_descriptors receive_with_descriptors(int socket, std::span<std::byte> bytes, std::span<unique_fd> given);

}  // namespace ferry::inline v0::detail

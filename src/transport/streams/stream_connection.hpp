#pragma once

// Messages over a connected stream socket, or over rings in shared memory that a socket accompanies.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ferry/transport/connection.hpp>
#include <ferry/transport/transport.hpp>

#include "../channels/direct_memory.hpp"
#include "../shm/shared_rings.hpp"

namespace ferry::inline v0::detail {

/// Takes ownership of `descriptor` (connected, handshake done, nothing of the message stream read yet).
/// `transport_name` is a literal; `kept` is released when the descriptor is closed. `features` (transport.hpp): whether the other
/// end takes feature_device_tensors, and whether this is a connection of feature_control or feature_observer, whose messages
/// are so rare that a thread that has read one waits for no other. With `rings` the messages go through them, and the socket
/// only wakes the other end; `direct` is the memory of GPUs that both processes read from each other, if there is any.
/// Throws errc::system_failure; then the descriptor is closed.
std::shared_ptr<connection> make_stream_connection(reactor& loop, int descriptor, std::string_view transport_name,
                                                   std::string description, const transport_options& options,
                                                   std::shared_ptr<void> kept = {}, std::uint64_t features = 0,
                                                   std::unique_ptr<shared_rings> rings = {},
                                                   std::shared_ptr<direct_memory> direct = {});

}  // namespace ferry::inline v0::detail

#pragma once

// Messages over a connected stream socket, or over rings in shared memory that a socket accompanies.

#include <memory>
#include <string>
#include <string_view>

#include <ferry/transport/connection.hpp>
#include <ferry/transport/transport.hpp>

#include "../channels/direct_memory.hpp"
#include "../shm/shared_rings.hpp"

namespace ferry::inline v0::detail {

/// Takes ownership of `descriptor` (connected, handshake done, nothing of the message stream read yet).
/// `transport_name` is a literal; `kept` is released when the descriptor is closed. With `device_tensors` the other end
/// supports feature_device_tensors. With `rings` the messages go through them, and the socket only wakes the other end;
/// `direct` is the memory of GPUs that both processes read from each other, if there is any.
/// Throws errc::system_failure; then the descriptor is closed.
std::shared_ptr<connection> make_stream_connection(reactor& loop, int descriptor, std::string_view transport_name,
                                                   std::string description, const transport_options& options,
                                                   std::shared_ptr<void> kept = {}, bool device_tensors = false,
                                                   std::unique_ptr<shared_rings> rings = {},
                                                   std::shared_ptr<direct_memory> direct = {});

}  // namespace ferry::inline v0::detail

#pragma once

// Streams that are being captured into a graph.

#include <string_view>

#include <ferry/device/stream.hpp>

namespace ferry::inline v0::detail {

/// Throws errc::device_failure if the stream is being captured; `attempt` completes "cannot ...". Called before ferry queues
/// work of its own in the order of a stream of the program's: memory, copies through the host, marks for messages. In a
/// capture these would become part of the graph, and so would the streams that wait for them.
void refuse_capture(const stream& on, std::string_view attempt);

}  // namespace ferry::inline v0::detail

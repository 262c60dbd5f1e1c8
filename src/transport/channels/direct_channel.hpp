#pragma once

// The parts of the channel cuda_ipc that are used elsewhere.

#include <memory>

#include <ferry/transport/channel.hpp>

#include "direct_memory.hpp"

namespace ferry::inline v0::detail {

/// For a tensor that is not wanted: receives the name of its memory, and gives it back unread.
std::unique_ptr<tensor_sink> open_giving_back_sink(const channel_context& context);

}  // namespace ferry::inline v0::detail

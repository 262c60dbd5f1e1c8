#pragma once

// The extension record of a call whose options place its tensors in place of the device maps (docs/protocol.md).

#include <cstdint>
#include <span>

#include <ferry/backend/device_map.hpp>
#include <ferry/rpc/interceptor.hpp>
#include <ferry/wire/message.hpp>

namespace ferry::inline v0::detail {

inline constexpr std::uint16_t placement_record_type = 4;

/// `placement`: the request's own one.
void add_placement_record(outgoing_message& message, const device_map& placement);
/// The placement of the answer: the inverse of the request's. Throws errc::malformed.
device_map read_placement_record(std::span<const std::byte> content);

}  // namespace ferry::inline v0::detail

#pragma once

// The extension record of messages within a context of distributed autograd: docs/protocol.md, "Gradients".

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ferry/base/bytes.hpp>
#include <ferry/device/device.hpp>

#include "message_set.hpp"

namespace ferry::inline v0::detail {

inline constexpr std::uint16_t autograd_record_type = 5;

struct autograd_record {
  struct tensor_entry {
    std::uint32_t index = 0;  ///< in the message
    device where;             ///< at the sender
  };
  std::uint64_t context = 0;
  std::uint64_t message = 0;          ///< without meaning if there are no tensors
  std::vector<tensor_entry> tensors;  ///< those that require a gradient, by index
  message_set upstream;               ///< the messages from which they were computed
};

byte_buffer encode_autograd_record(const autograd_record& record);
/// Throws errc::truncated or errc::malformed; allocates no more than the content is long.
autograd_record decode_autograd_record(std::span<const std::byte> content);

}  // namespace ferry::inline v0::detail

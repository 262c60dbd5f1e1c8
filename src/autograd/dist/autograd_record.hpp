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

/// Contexts of one maker that are over: all from `first` on, up to and without `oldest_kept`. Both 0: none.
struct contexts_over {
  std::uint64_t first = 0;
  std::uint64_t oldest_kept = 0;
  [[nodiscard]] bool said() const noexcept { return first != 0 || oldest_kept != 0; }
  [[nodiscard]] bool contains(std::uint64_t context) const noexcept {
    return first <= context && context < oldest_kept;
  }
};

struct autograd_record {
  struct tensor_entry {
    std::uint32_t index = 0;  ///< in the message
    device where;             ///< at the sender
  };
  std::uint64_t context = 0;
  std::uint64_t message = 0;          ///< without meaning if there are no tensors
  std::vector<tensor_entry> tensors;  ///< those that require a gradient, by index
  message_set upstream;               ///< the messages from which they were computed
  contexts_over over;                 ///< of the maker of the context, as far as the sender knows
};

byte_buffer encode_autograd_record(const autograd_record& record);
/// Throws errc::truncated or errc::malformed; allocates no more than the content is long.
autograd_record decode_autograd_record(std::span<const std::byte> content);

}  // namespace ferry::inline v0::detail

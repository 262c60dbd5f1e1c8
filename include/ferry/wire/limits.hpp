#pragma once

#include <cstdint>

namespace ferry::inline v0 {

/// Bounds on what is accepted off the wire. Each is checked before memory is allocated for the thing it counts.
struct wire_limits {
  std::uint64_t max_message_bytes = std::uint64_t{64} << 30;  ///< payload plus tensor data of one message
  std::uint64_t max_decoded_bytes = std::uint64_t{64} << 30;  ///< memory that decoding one payload may take
  std::uint32_t max_tensors = 65535;                          ///< tensors in one message
  std::uint32_t max_rank = 32;                                ///< dimensions of one tensor
  std::uint32_t max_depth = 128;                              ///< nesting of containers, pointers and user types
  std::uint32_t max_extension_bytes = 64 * 1024;              ///< extension records of one message
};

}  // namespace ferry::inline v0

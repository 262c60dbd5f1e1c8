#pragma once

#include <cstdint>

namespace ferry::inline v0 {

/// Bounds on what a worker sends and on what it accepts: there each is checked before memory is taken for what it counts.
struct wire_limits {
  std::uint64_t max_message_bytes = std::uint64_t{64} << 30;  ///< payload plus tensor data of one message
  std::uint64_t max_decoded_bytes = std::uint64_t{64} << 30;  ///< memory that decoding one payload may take
  /// Memory that decoding may take for each byte of the payload, beyond the first 16 MiB: elements that need no bytes
  /// on the wire (empty structs, null pointers) must not turn a short message into gigabytes.
  std::uint32_t max_expansion = 1024;
  std::uint32_t max_tensors = 65535;              ///< tensors in one message
  std::uint32_t max_rank = 32;                    ///< dimensions of one tensor
  std::uint32_t max_depth = 128;                  ///< nesting of containers, pointers and user types
  std::uint32_t max_extension_bytes = 4U << 20U;  ///< extension records of one message (48 for each reference in it)
  /// Extension records of one message: one without content takes eight bytes on the wire, and more to read.
  std::uint32_t max_extensions = 64;

  /// What decoding a payload of `bytes` may take.
  [[nodiscard]] constexpr std::uint64_t decoded_budget(std::uint64_t bytes) const noexcept {
    constexpr std::uint64_t always = std::uint64_t{16} << 20;
    const std::uint64_t allowed = bytes > (max_decoded_bytes / (std::uint64_t{max_expansion} + 1))
                                      ? max_decoded_bytes
                                      : always + bytes * max_expansion;
    return allowed < max_decoded_bytes ? allowed : max_decoded_bytes;
  }

  friend constexpr bool operator==(const wire_limits&, const wire_limits&) = default;
};

}  // namespace ferry::inline v0

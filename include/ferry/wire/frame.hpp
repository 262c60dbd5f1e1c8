#pragma once

// The fixed header of a message on a byte stream. docs/protocol.md specifies every byte.
//
//   header (64) | payload | extension records | tensor table | tensor data ... | transfer status

#include <cstddef>
#include <cstdint>

#include <ferry/wire/limits.hpp>

namespace ferry::inline v0 {

enum class frame_kind : std::uint8_t {
  request = 1,    ///< a call; `method`, `signature`, `timeout_us` are set
  reply = 2,      ///< its value
  exception = 3,  ///< the method threw; the payload is an encoded exception
  failure = 4,    ///< the call failed before or after the method; `code` is an errc, the payload its text
  cancel = 5,     ///< the caller no longer wants the reply to `call_id`
  control = 6,    ///< between agents, never visible to users; `code` says which
};

enum frame_flags : std::uint8_t {
  frame_one_way = 1,      ///< a request without reply
  frame_no_deadline = 2,  ///< a request that never times out; `timeout_us` is zero
  /// Of any kind: a transfer status (wire/message.hpp) follows the tensor data.
  frame_outcome = 4,
  /// With frame_outcome: before the tensor data stands a byte for each tensor, 1 for those that come as the name of the sender's
  /// memory (docs/protocol.md).
  frame_direct = 8,
  frame_known_flags = 15,
};

struct frame_header {
  static constexpr std::size_t encoded_size = 64;
  static constexpr std::size_t tensor_record_bytes = 256;  ///< in held_bytes(), for each tensor

  frame_kind kind = frame_kind::request;
  std::uint8_t flags = 0;
  std::uint16_t tensor_count = 0;
  std::uint32_t extension_bytes = 0;
  std::uint64_t call_id = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t tensor_bytes = 0;  ///< of all tensors together
  std::uint32_t table_bytes = 0;
  std::uint32_t code = 0;
  std::uint64_t method = 0;
  std::uint64_t signature = 0;
  std::uint64_t timeout_us = 0;

  /// Bytes after the header that are not tensor data.
  [[nodiscard]] std::uint64_t body_bytes() const noexcept { return payload_bytes + extension_bytes + table_bytes; }
  /// All bytes of the message, this header and tensor data included.
  [[nodiscard]] std::uint64_t message_bytes() const noexcept { return encoded_size + body_bytes() + tensor_bytes; }
  /// What the receiver holds for it: message_bytes(), and for each tensor the record that describes it, which may be
  /// larger than its data.
  [[nodiscard]] std::uint64_t held_bytes() const noexcept {
    return message_bytes() + std::uint64_t{tensor_count} * tensor_record_bytes;
  }

  /// Writes encoded_size bytes, little-endian.
  void encode(std::byte* out) const noexcept;
  /// Reads encoded_size bytes and checks them against `limits`. Throws errc::malformed or errc::limit_exceeded.
  static frame_header decode(const std::byte* in, const wire_limits& limits);
};

}  // namespace ferry::inline v0

#pragma once

// The bytes of an extension record, as docs/protocol.md, "Extension records", specifies them.

#include <cstddef>
#include <cstdint>

namespace ferry::inline v0::detail {

constexpr std::size_t record_header = 8;
constexpr std::size_t record_alignment = 8;
constexpr std::uint16_t record_critical = 1;

// Offsets in the header.
constexpr std::size_t record_flags_at = 2;
constexpr std::size_t record_length_at = 4;

constexpr std::size_t padded_record(std::size_t bytes) noexcept {
  return (bytes + record_alignment - 1) / record_alignment * record_alignment;
}

}  // namespace ferry::inline v0::detail

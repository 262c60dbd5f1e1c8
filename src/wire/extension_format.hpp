#pragma once

// The bytes of an extension record, as docs/protocol.md, "Extension records", specifies them.

#include <cstddef>
#include <cstdint>
#include <span>

#include <ferry/base/detail/little_endian.hpp>
#include <ferry/wire/extension.hpp>

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

/// Throws what is wrong with the first record.
[[noreturn]] void refuse_extension(std::span<const std::byte> records);
/// Whether those behind the content of the first record are zeros. Most records have none.
[[nodiscard]] bool has_proper_padding(std::span<const std::byte> records, std::size_t length) noexcept;

/// As next_extension(), for code that reads those of every message.
inline bool take_extension(std::span<const std::byte>& records, extension_record& record) {
  if (records.empty()) return false;
  if (records.size() < record_header) refuse_extension(records);
  const std::byte* const at = records.data();
  const auto type = load_le<std::uint16_t>(at);
  const auto flags = load_le<std::uint16_t>(at + record_flags_at);
  const std::size_t length = load_le<std::uint32_t>(at + record_length_at);
  const std::size_t padded = padded_record(length);
  if (range_of_extension(type) == extension_range::reserved || (flags & ~record_critical) != 0 ||
      padded > records.size() - record_header)
    refuse_extension(records);
  if (padded != length && !has_proper_padding(records, length)) refuse_extension(records);
  record.type = type;
  record.critical = flags != 0;
  record.content = {at + record_header, length};
  records = records.subspan(record_header + padded);
  return true;
}

}  // namespace ferry::inline v0::detail

#pragma once

// Extension records: what travels with a message behind its payload. docs/protocol.md, "Extension records".

#include <cstddef>
#include <cstdint>
#include <span>

#include <ferry/wire/limits.hpp>

namespace ferry::inline v0 {

/// Who assigns the type of an extension record. Type 0 is never valid.
enum class extension_range : std::uint8_t {
  reserved,     ///< 0: an error on the wire
  ferry,        ///< 1 to 1023: this library's own
  registered,   ///< 1024 to 32767: listed in docs/protocol.md, which says how to register
  private_use,  ///< 32768 to 65535: free; all workers of a group must agree on their meaning
};

inline constexpr std::uint16_t first_ferry_extension = 1;
inline constexpr std::uint16_t first_registered_extension = 1024;
inline constexpr std::uint16_t first_private_extension = 32768;

[[nodiscard]] constexpr extension_range range_of_extension(std::uint16_t type) noexcept {
  return type >= first_private_extension      ? extension_range::private_use
         : type >= first_registered_extension ? extension_range::registered
         : type >= first_ferry_extension      ? extension_range::ferry
                                              : extension_range::reserved;
}

/// One extension record. A message may have several of one type; they keep the order in which they were added.
struct extension_record {
  std::uint16_t type = 0;
  bool critical = false;
  std::span<const std::byte> content;  ///< not aligned
};

/// Takes the next record off `records`; false at the end. Allocates nothing. Throws errc::truncated or errc::malformed.
/// Does not count: call check_extensions() first on records off the wire.
bool next_extension(std::span<const std::byte>& records, extension_record& record);

/// Checks the form of all records of a message, and their number against `limits`, before anything is allocated for
/// them. Throws as next_extension() does, and errc::limit_exceeded.
void check_extensions(std::span<const std::byte> records, const wire_limits& limits);

/// For a record whose type the reader does not know. Returns if the record may be skipped. Throws
/// errc::unknown_extension if it is critical.
void skip_extension(const extension_record& record);

}  // namespace ferry::inline v0

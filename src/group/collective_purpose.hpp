#pragma once

// What a collective is for, as a number that its members compare, and what code that makes collectives on behalf of other code says
// of them all.

#include <cstdint>
#include <string>

#include <ferry/rpc/context_values.hpp>

namespace ferry::inline v0::detail {

/// The gradient of the collective of that number in its group.
[[nodiscard]] constexpr std::uint64_t gradient_purpose(std::uint64_t of) noexcept { return of + 1; }
/// The average of a bucket of gradients (ddp). The numbers are cut to 15, 32 and 16 bits.
struct bucket_purpose {
  std::uint64_t module = 0;  ///< of the group
  std::uint64_t pass = 0;
  std::uint64_t bucket = 0;
  /// In the place of a bucket: whether members make that pass.
  static constexpr std::uint64_t joining = 0xffff;
  [[nodiscard]] constexpr std::uint64_t number() const noexcept {
    return std::uint64_t{1} << 63U | (module & 0x7fffU) << 48U | (pass & 0xffffffffU) << 16U | (bucket & 0xffffU);
  }
};
/// "gradient of collective 3"; empty for none.
[[nodiscard]] std::string describe_purpose(std::uint64_t purpose);

/// Of all collectives that a piece of code makes, also where it goes on later.
struct collective_note {
  std::uint64_t purpose = 0;  ///< of those that have none of their own
  /// Not empty: they end with this text, errc::remote_exception, on every member.
  std::string refusal = {};
};
/// The values of the calling thread, and that note.
[[nodiscard]] context_values values_with_note(collective_note note);
/// Of the calling thread; null: there is none.
[[nodiscard]] const collective_note* current_note() noexcept;

}  // namespace ferry::inline v0::detail

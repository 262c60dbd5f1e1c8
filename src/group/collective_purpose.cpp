#include "collective_purpose.hpp"

#include <utility>

#include <fmt/format.h>

namespace ferry::inline v0::detail {
namespace {

constexpr context_key<collective_note> note_key("ferry.group.note");

}  // namespace

std::string describe_purpose(std::uint64_t purpose) {
  if (purpose == 0) return "";
  if (purpose >> 63U == 0) return fmt::format("gradient of collective {}", purpose - 1);
  const std::uint64_t pass = purpose >> 16U & 0xffffffffU;
  const std::uint64_t bucket = purpose & 0xffffU;
  return bucket == bucket_purpose::joining ? fmt::format("join before pass {}", pass)
                                           : fmt::format("bucket {} of pass {}", bucket, pass);
}

context_values values_with_note(collective_note note) { return current_values().with(note_key, std::move(note)); }
const collective_note* current_note() noexcept { return current_value(note_key); }

}  // namespace ferry::inline v0::detail

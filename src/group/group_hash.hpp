#pragma once

// FNV-1a over what members of a group must agree on, or count alike.

#include <cstdint>
#include <string_view>

namespace ferry::inline v0::detail {

inline constexpr std::uint64_t empty_group_hash = 0xcbf29ce484222325U;

constexpr std::uint64_t group_hash(std::uint64_t hash, std::uint64_t value) noexcept {
  return (hash ^ value) * 0x100000001b3U;
}
constexpr std::uint64_t group_hash(std::uint64_t hash, std::string_view text) noexcept {
  for (const char c : text) hash = group_hash(hash, static_cast<unsigned char>(c));
  return group_hash(hash, text.size());
}

}  // namespace ferry::inline v0::detail

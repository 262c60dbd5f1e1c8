#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace ferry::inline v0::detail {

/// The number that the whole text spells, as std::from_chars reads it; nothing if it spells none, or one that does not fit.
/// `base` is that of an integer, 10 unless given.
template <class Number = int, class... Base>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text, Base... base) noexcept {
  Number value{};
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, value, base...);
  if (failure != std::errc() || end != last) return std::nullopt;
  return value;
}

}  // namespace ferry::inline v0::detail

#include "static_keys.hpp"

#include <fmt/format.h>

#include <ferry/base/error.hpp>

#include "../../base/parse_number.hpp"

namespace ferry::inline v0::detail {

std::string rank_key(std::string_view prefix, int rank) { return fmt::format("{}{}", prefix, rank); }

std::vector<std::string> split_text(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::size_t at = 0;
  for (;;) {
    const std::size_t end = text.find(separator, at);
    result.push_back(text.substr(at, end - at));
    if (end == std::string::npos) return result;
    at = end + 1;
  }
}

std::uint64_t stored_number(std::string_view text, std::string_view what) {
  const auto value = parse_number<std::uint64_t>(text);
  if (!value) {
    throw_error(errc::malformed,
                fmt::format("the store holds '{}' as {}; is another program using these keys?", text, what));
  }
  return *value;
}

}  // namespace ferry::inline v0::detail

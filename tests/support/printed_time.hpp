#pragma once

#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ferry_test {

/// The seconds that `text` tells behind `words`, as in "waited 0.512 s"; not a number if it does not.
inline double seconds_behind(std::string_view words, std::string_view text) {
  const auto at = text.find(words);
  if (at == std::string_view::npos) return std::numeric_limits<double>::quiet_NaN();
  const std::string rest(text.substr(at + words.size()));
  std::size_t length = 0;
  try {
    const double value = std::stod(rest, &length);
    if (rest.compare(length, 2, " s") == 0) return value;
  } catch (const std::logic_error&) {  // NOLINT(bugprone-empty-catch): no number
  }
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace ferry_test

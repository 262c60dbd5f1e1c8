#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// Names and errors of peers, for a terminal: control characters (C0, DEL, and C1, which UTF-8 writes as c2 80 to c2 9f) could
/// move its cursor. Each becomes one '?', so the width remains.
inline std::string printable(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (std::size_t i = 0; i != text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 == text.size() ? 0 : text[i + 1]);
    const bool c1 = byte == 0xc2 && next >= 0x80 && next <= 0x9f;
    result += byte < 0x20 || byte == 0x7f || c1 ? '?' : text[i];
    if (c1) ++i;
  }
  return result;
}

/// The same for a text of several lines: its newlines remain.
inline std::string printable_lines(std::string_view text) {
  std::string result;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find('\n', begin);
    result += printable(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return result;
    result += '\n';
    begin = end + 1;
  }
}

}  // namespace ferry::inline v0::detail

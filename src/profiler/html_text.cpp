#include "html_text.hpp"

#include <fmt/format.h>

#include "../base/utf8.hpp"

namespace ferry::inline v0::detail {

void append_html(std::string& out, std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence_length(text);
    const auto c = static_cast<unsigned char>(text.front());
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    const bool not_a_character =
        length == 3 && (text.substr(0, 3) == "\xef\xbf\xbe" || text.substr(0, 3) == "\xef\xbf\xbf");
    if (length == 0 || control || not_a_character) {
      out += "\xef\xbf\xbd";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

std::string duration_text(std::int64_t ns) {
  const auto value = static_cast<double>(ns);
  const double size = value < 0 ? -value : value;
  if (size < 1e3) return fmt::format("{} ns", ns);
  if (size < 1e6) return fmt::format("{:.1f} us", value / 1e3);
  if (size < 1e9) return fmt::format("{:.2f} ms", value / 1e6);
  return fmt::format("{:.3f} s", value / 1e9);
}

}  // namespace ferry::inline v0::detail

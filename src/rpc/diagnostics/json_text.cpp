#include "json_text.hpp"

#include <cstddef>

#include "../../base/utf8.hpp"

namespace ferry::inline v0::detail {
void append_json(std::string& out, std::string_view text) {
  constexpr std::string_view hex = "0123456789abcdef";
  out += '"';
  while (!text.empty()) {
    const char c = text.front();
    const std::size_t length = utf8_sequence_length(text);
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\u00";
      out += hex[static_cast<unsigned char>(c) >> 4U];
      out += hex[static_cast<unsigned char>(c) & 0xfU];
    } else if (length == 2 && c == '\xc2' &&
               static_cast<unsigned char>(text[1]) < 0xa0) {  // C1: control characters, too
      out += "\\u00";
      out += hex[static_cast<unsigned char>(text[1]) >> 4U];
      out += hex[static_cast<unsigned char>(text[1]) & 0xfU];
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  out += '"';
}

std::string json_text(std::string_view text) {
  std::string result;
  append_json(result, text);
  return result;
}

}  // namespace ferry::inline v0::detail

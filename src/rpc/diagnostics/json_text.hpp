#pragma once

#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// Appends `text` as a JSON string, quotes included. Bytes that are not UTF-8 become U+FFFD, one for each.
void append_json(std::string& out, std::string_view text);

/// The same, as a new string.
std::string json_text(std::string_view text);

}  // namespace ferry::inline v0::detail

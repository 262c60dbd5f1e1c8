#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// Appends `text` as text of an HTML element or attribute that is well-formed XML, too. Bytes that are not UTF-8, and characters that
/// XML does not have, become U+FFFD.
void append_html(std::string& out, std::string_view text);

/// For people: "950 ns", "12.3 us", "4.56 ms", "1.230 s".
std::string duration_text(std::int64_t ns);

}  // namespace ferry::inline v0::detail

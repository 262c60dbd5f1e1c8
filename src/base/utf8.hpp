#pragma once

#include <cstddef>
#include <string_view>

namespace ferry::inline v0::detail {

/// The length in bytes of the well-formed UTF-8 sequence that `text`, which is not empty, begins with (Unicode 15, table 3-7); 0 if it
/// begins with none.
std::size_t utf8_sequence_length(std::string_view text) noexcept;

}  // namespace ferry::inline v0::detail

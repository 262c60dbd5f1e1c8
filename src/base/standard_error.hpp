#pragma once

// Lines on standard error, written without ever waiting.

#include <string_view>

namespace ferry::inline v0::detail {

/// Writes the line if standard error takes it at once; if it does not (a full pipe, a stopped terminal), the line is
/// lost and counted, and the count is written before the next line that is taken. Thread-safe.
void write_line_or_drop(std::string_view line) noexcept;

}  // namespace ferry::inline v0::detail

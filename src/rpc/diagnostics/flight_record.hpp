#pragma once

// Flight records as text, and where they are written.

#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// Writes `text` to a file that takes the place of `path` in one step, so that no reader sees half of it. If `path` is a
/// directory: to `name` in it. Returns the file. Throws errc::system_failure; then what was there before still is.
std::string write_record(const std::string& path, const std::string& name, std::string_view text);

/// What all workers of the process have recorded.
std::string records_of_process(std::string_view reason);

}  // namespace ferry::inline v0::detail

#pragma once

// Flight records as text, and the files they are written to.

#include <string>
#include <string_view>

namespace ferry::inline v0::detail {

/// Writes `text` to a file that replaces `path` atomically, so that no reader sees half of it. If `path` is a
/// directory: to `name` in it. Returns the file. Throws errc::system_failure, and leaves the previous file in place.
std::string write_record(const std::string& path, const std::string& name, std::string_view text);

/// The records of all workers of the process.
std::string records_of_process(std::string_view reason);

}  // namespace ferry::inline v0::detail

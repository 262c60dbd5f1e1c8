#pragma once

// Files in which workers record their last events (docs/debugging.md).

#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace ferry_run {

/// Makes the directory unless it exists, and returns its absolute path: workers may go to another one. Empty stays empty.
/// Throws std::system_error.
std::string made_flight_directory(const std::string& path);

/// The files there that the process has left. Older ones are of other processes with its number.
std::vector<std::string> flight_records_of(const std::string& directory, pid_t process,
                                           std::filesystem::file_time_type since);

}  // namespace ferry_run

#include "flight_records.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <system_error>

namespace ferry_run {
namespace {

// File systems take their times from a clock that ticks less often than others.
constexpr std::chrono::seconds clock_tolerance{1};

// "ferry-WORKER-PROCESS.flight", or of a second file "ferry-WORKER-PROCESS.2.flight". WORKER has no dot.
bool is_flight_record_of(std::string_view name, const std::string& process) {
  constexpr std::string_view prefix = "ferry-";
  constexpr std::string_view suffix = ".flight";
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() < prefix.size() + suffix.size()) return false;
  name.remove_suffix(suffix.size());
  name.remove_prefix(prefix.size());
  if (const auto dot = name.find('.'); dot != std::string_view::npos) {
    const std::string_view number = name.substr(dot + 1);
    if (number.empty() || number.size() > 3 || number.find_first_not_of("0123456789") != std::string_view::npos)
      return false;
    name = name.substr(0, dot);
  }
  return name.ends_with("-" + process);
}

}  // namespace

std::string made_flight_directory(const std::string& path) {
  if (path.empty()) return path;
  std::error_code failure;
  const std::filesystem::path directory = std::filesystem::absolute(path, failure);
  if (!failure) std::filesystem::create_directories(directory, failure);
  if (!failure && !std::filesystem::is_directory(directory, failure) && !failure)
    failure = std::make_error_code(std::errc::not_a_directory);
  if (failure) throw std::system_error(failure, "cannot make the directory " + path);
  return directory.string();
}

std::vector<std::string> flight_records_of(const std::string& directory, pid_t process,
                                           std::filesystem::file_time_type since) {
  std::vector<std::string> files;
  if (directory.empty()) return files;
  std::error_code failure;
  std::filesystem::directory_iterator each(directory, failure);
  for (; !failure && each != std::filesystem::directory_iterator(); each.increment(failure)) {
    if (!is_flight_record_of(each->path().filename().string(), std::to_string(process))) continue;
    std::error_code gone;
    const auto written = each->last_write_time(gone);
    if (!gone && written >= since - clock_tolerance) files.push_back(each->path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace ferry_run

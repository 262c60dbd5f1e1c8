#pragma once

#include <exception>
#include <string>
#include <string_view>

#include <ferry/base/log.hpp>

namespace ferry::inline v0::detail {

/// Logs a warning about a failure, for callers that cannot throw: a short one if there is no memory for more.
inline void log_problem(std::string_view what, const std::exception& problem) noexcept {
  try {
    log(log_level::warning, std::string(what) + ": " + problem.what());
  } catch (const std::exception&) {
    log(log_level::warning, what);
  }
}

}  // namespace ferry::inline v0::detail

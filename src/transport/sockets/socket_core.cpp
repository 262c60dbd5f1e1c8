#include "socket_core.hpp"

#include <ferry/base/log.hpp>

#include <fmt/format.h>

namespace ferry::inline v0::detail {

void warning_limiter::warn(std::string_view text) {
  constexpr int most_per_window = 20;
  constexpr std::chrono::seconds window_length{5};
  const auto now = std::chrono::steady_clock::now();
  if (now - window_ >= window_length) {
    if (dropped_ != 0) log(log_level::warning, fmt::format("{} more warnings about peers were suppressed", dropped_));
    window_ = now;
    in_window_ = 0;
    dropped_ = 0;
  }
  if (++in_window_ > most_per_window) {
    ++dropped_;
    return;
  }
  log(log_level::warning, text);
}

}  // namespace ferry::inline v0::detail

#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/log.hpp>

namespace ferry_test {

/// Collects what the library logs while it lives, instead of printing it. One at a time.
class captured_log {
 public:
  explicit captured_log(ferry::log_level level = ferry::log_level::warning) : previous_(ferry::get_log_level()) {
    {
      std::lock_guard lock(sink().mutex);
      sink().lines.clear();
      sink().levels.clear();
    }
    ferry::set_log_level(level);
    ferry::set_log_sink(
        [](ferry::log_level level, std::string_view text, void*) {
          std::lock_guard lock(sink().mutex);
          sink().lines.emplace_back(text);
          sink().levels.push_back(level);
        },
        nullptr);
  }
  ~captured_log() {
    ferry::set_log_sink(nullptr, nullptr);
    ferry::set_log_level(previous_);
  }
  captured_log(const captured_log&) = delete;
  captured_log& operator=(const captured_log&) = delete;

  /// Whether a line contains all of the parts.
  template <class... Parts>
  [[nodiscard]] bool has(const Parts&... parts) const {
    std::lock_guard lock(sink().mutex);
    for (const std::string& line : sink().lines) {
      if (((line.find(parts) != std::string::npos) && ...)) return true;
    }
    return false;
  }
  /// The level of the first such line.
  template <class... Parts>
  [[nodiscard]] std::optional<ferry::log_level> level_of(const Parts&... parts) const {
    std::lock_guard lock(sink().mutex);
    for (std::size_t i = 0; i != sink().lines.size(); ++i) {
      if (((sink().lines[i].find(parts) != std::string::npos) && ...)) return sink().levels[i];
    }
    return std::nullopt;
  }
  [[nodiscard]] std::size_t size() const {
    std::lock_guard lock(sink().mutex);
    return sink().lines.size();
  }

 private:
  struct shared {
    std::mutex mutex;
    std::vector<std::string> lines;
    std::vector<ferry::log_level> levels;
  };
  // The library may be in the middle of logging when this object goes.
  static shared& sink() {
    static auto* instance = new shared;
    return *instance;
  }
  ferry::log_level previous_;
};

}  // namespace ferry_test

#pragma once

#include <string>

namespace ferry_bench {

/// A program of another library beside this one, if the build has found that library: it measures the same and prints a number.
class peer_program {
 public:
  explicit peer_program(const std::string& name);
  [[nodiscard]] bool there() const noexcept { return !program_.empty(); }
  /// What it prints. Throws std::runtime_error if it cannot be started or fails.
  [[nodiscard]] std::string ask(const std::string& arguments) const;

 private:
  std::string program_;
};

}  // namespace ferry_bench

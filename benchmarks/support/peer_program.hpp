#pragma once

#include <functional>
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

/// A script of benchmarks/peers, run by the first of $PYTHON, python3 and /usr/bin/python3 that has the module it needs.
class python_peer {
 public:
  python_peer(const std::string& script, const std::string& module);
  [[nodiscard]] bool there() const noexcept { return !interpreter_.empty(); }
  /// Calls `on_line` for each line that it prints, as it comes. Throws std::runtime_error if it cannot be started or fails.
  void run(const std::string& arguments, const std::function<void(const std::string&)>& on_line) const;

 private:
  std::string interpreter_;
  std::string script_;
};

}  // namespace ferry_bench

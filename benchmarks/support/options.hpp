#pragma once

// The command-line options common to all benchmarks.

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "affinity.hpp"

namespace ferry_bench {

struct options {
  bool quick = false;                   ///< fewer and shorter repeats: an estimate, not a measurement
  bool alone = false;                   ///< without the baselines: for a profiler
  bool json = false;                    ///< one object a line on standard output instead of a table
  int repeats = 5;                      ///< value and baseline are measured in turn, so often each
  std::chrono::milliseconds window{0};  ///< of one measurement; 0: the benchmark's own
  std::vector<std::string> filters;     ///< all of these must occur in a case's name
  std::vector<pin_mode> pins;           ///< empty: the benchmark's own
  std::chrono::seconds limit{0};        ///< the process ends with an error after so long; 0: the benchmark's own

  [[nodiscard]] bool wants(std::string_view name) const;
  /// `usual`, a fifth of it with --quick, or the value of --window.
  [[nodiscard]] std::chrono::nanoseconds window_or(std::chrono::nanoseconds usual) const;
  /// `usual` without those that this machine cannot have, or those of --pin.
  [[nodiscard]] std::vector<pin_mode> pins_or(const std::vector<pin_mode>& usual) const;
};

/// Reads the command line. Prints help or an error and exits.
options read_options(int argc, char** argv, std::string_view what);

/// Ends the process with an error (and with it its children) when it still runs after `limit`.
void end_after(std::chrono::seconds limit);

}  // namespace ferry_bench

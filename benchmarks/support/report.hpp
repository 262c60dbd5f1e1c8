#pragma once

// Figures, as a readable table or as one JSON object per line.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "options.hpp"
#include "statistics.hpp"

namespace ferry_bench {

struct figure {
  std::string name;  ///< "tcp/two-cores/sleeping/add"
  double value = 0;
  std::string unit;
  std::string baseline = {};  ///< what the value is compared with; empty: nothing
  double baseline_value = 0;
  std::size_t n = 0;      ///< samples behind the value
  std::string note = {};  ///< for readers: the range over the repeats, for example
};

/// What a figure, or its ratio to the baseline, should reach.
struct target {
  double bound;
  bool at_least;  ///< else at most
  bool of_ratio;  ///< else of the value
};

/// Prints as it goes. Figures go to standard output; all other output is omitted with --json.
class report {
 public:
  /// Prints the machine and the raw spinning ring; the destructor prints the ring again.
  report(std::string benchmark, const options& chosen);
  ~report();
  report(const report&) = delete;
  report& operator=(const report&) = delete;

  /// A new table; its title is the prefix of its figures' names.
  void section(std::string_view title);
  void add(const figure& what, std::optional<target> wanted = std::nullopt);
  /// `value` against `baseline` (see median_pair), with the range over the repeats; also the 99th percentiles as a
  /// figure of their own.
  void add(const std::string& name, const timing& value, const std::string& baseline, const timing* baseline_value,
           std::optional<target> wanted = std::nullopt);
  void add(const std::string& name, const repeated& value, const std::string& unit, const std::string& baseline,
           const repeated* baseline_value, std::size_t n, std::optional<target> wanted = std::nullopt);
  void say(std::string_view line) const;

 private:
  void print_row(const figure& what, const std::optional<target>& wanted);
  void print_json(const figure& what) const;
  void measure_ring(const char* when);

  std::string benchmark_;
  bool json_;
  bool quick_;
  bool alone_ = false;
  std::string section_;
  bool header_printed_ = false;
  int met_ = 0;
  int missed_ = 0;
};

}  // namespace ferry_bench

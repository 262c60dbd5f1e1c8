#pragma once

// Samples of one measurement, and statistics over repeated measurements.

#include <chrono>
#include <cstddef>
#include <vector>

namespace ferry_bench {

using clock = std::chrono::steady_clock;

/// The value below which the fraction `q` of `values` lies; reorders them. 0 if there are none.
double quantile(std::vector<double>& values, double q);

/// One figure of each repeat.
class repeated {
 public:
  void add(double value) { values_.push_back(value); }
  [[nodiscard]] bool empty() const { return values_.empty(); }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }
  [[nodiscard]] double median() const;
  [[nodiscard]] double lowest() const;
  [[nodiscard]] double highest() const;

 private:
  std::vector<double> values_;
};

struct compared {
  double value = 0;
  double baseline = 0;
};
/// Value and baseline of the repeat whose ratio is the median of all ratios: a machine that changes its speed between
/// two repeats, as virtual ones do, affects separately taken medians, but not this.
compared median_pair(const repeated& value, const repeated& baseline);

/// Durations, in microseconds: the medians and the 99th percentiles of each repeat.
struct timing {
  repeated p50;
  repeated p99;
  std::size_t samples = 0;

  void add(std::vector<double>& microseconds);
};

/// Calls `once` for as long as `window` and at least `least` times, and returns how long each call took, in
/// microseconds. One clock reading per call.
template <class F>
std::vector<double> time_each(std::chrono::nanoseconds window, std::size_t least, F&& once) {
  std::vector<double> result;
  result.reserve(1 << 14);
  auto last = clock::now();
  const auto until = last + window;
  do {
    once();
    const auto now = clock::now();
    result.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
  } while (last < until || result.size() < least);
  return result;
}

}  // namespace ferry_bench

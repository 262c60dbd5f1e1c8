#include "statistics.hpp"

#include <algorithm>

namespace ferry_bench {

double quantile(std::vector<double>& values, double q) {
  if (values.empty()) return 0;
  const auto at = std::min(values.size() - 1, static_cast<std::size_t>(q * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

double repeated::median() const {
  auto copy = values_;
  return quantile(copy, 0.5);
}
double repeated::lowest() const { return values_.empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
double repeated::highest() const { return values_.empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }

compared median_pair(const repeated& value, const repeated& baseline) {
  std::vector<compared> pairs;
  for (std::size_t i = 0; i != std::min(value.values().size(), baseline.values().size()); ++i) {
    pairs.push_back({value.values()[i], baseline.values()[i]});
  }
  if (pairs.empty()) return {};
  const auto middle = pairs.begin() + static_cast<std::ptrdiff_t>(pairs.size() / 2);
  std::nth_element(pairs.begin(), middle, pairs.end(),
                   [](const compared& a, const compared& b) { return a.value * b.baseline < b.value * a.baseline; });
  return *middle;
}

void timing::add(std::vector<double>& microseconds) {
  samples += microseconds.size();
  p50.add(quantile(microseconds, 0.50));
  p99.add(quantile(microseconds, 0.99));
}

}  // namespace ferry_bench

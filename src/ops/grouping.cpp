#include "grouping.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace ferry::inline v0::detail {

number_groups group_numbers(std::span<const std::int64_t> numbers) {
  const auto number_at = [&](std::int64_t position) { return numbers[static_cast<std::size_t>(position)]; };
  number_groups groups;
  groups.order.resize(numbers.size());
  std::iota(groups.order.begin(), groups.order.end(), std::int64_t{0});
  std::stable_sort(groups.order.begin(), groups.order.end(),
                   [&](std::int64_t a, std::int64_t b) { return number_at(a) < number_at(b); });
  for (std::size_t i = 0; i != groups.order.size(); ++i) {
    const std::int64_t number = number_at(groups.order[i]);
    if (!groups.distinct.empty() && groups.distinct.back() == number) continue;
    groups.distinct.push_back(number);
    groups.begins.push_back(static_cast<std::int64_t>(i));
  }
  groups.begins.push_back(static_cast<std::int64_t>(groups.order.size()));
  return groups;
}

}  // namespace ferry::inline v0::detail

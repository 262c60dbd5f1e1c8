#pragma once

// Equal numbers brought together: rows of a table that come several times, places of a sparse tensor.

#include <cstdint>
#include <span>
#include <vector>

namespace ferry::inline v0::detail {

struct number_groups {
  std::vector<std::int64_t> distinct;  // ascending
  std::vector<std::int64_t>
      begins;  // one more: those equal to distinct[i] stand at order[begins[i]] to order[begins[i + 1]]
  std::vector<std::int64_t> order;  // positions, those of equal numbers in the order in which they come
};
number_groups group_numbers(std::span<const std::int64_t> numbers);

}  // namespace ferry::inline v0::detail

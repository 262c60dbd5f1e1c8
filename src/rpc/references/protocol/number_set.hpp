#pragma once

// A set of numbers drawn from a counter, stored as intervals: it soon contains almost all numbers below its maximum.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace ferry::inline v0::detail {

/// Value type. Memory: one node per gap between its numbers.
class number_set {
 public:
  [[nodiscard]] bool contains(std::uint64_t number) const noexcept {
    const auto after = intervals_.upper_bound(number);
    return after != intervals_.begin() && std::prev(after)->second >= number;
  }
  /// Returns false if the number was already present. Strong guarantee on std::bad_alloc.
  bool insert(std::uint64_t number) {
    auto after = intervals_.upper_bound(number);
    if (after != intervals_.begin()) {
      const auto before = std::prev(after);
      if (before->second >= number) return false;
      if (before->second + 1 == number) {
        before->second = number;
        if (after != intervals_.end() && after->first == number + 1) {
          before->second = after->second;
          intervals_.erase(after);
        }
        return true;
      }
    }
    if (after != intervals_.end() && number + 1 == after->first) {
      auto node = intervals_.extract(after);
      node.key() = number;
      intervals_.insert(std::move(node));
      return true;
    }
    intervals_.emplace_hint(after, number, number);
    return true;
  }
  /// Inserts all numbers in [1, number). If it throws std::bad_alloc, none of them is in the set.
  void insert_below(std::uint64_t number) {
    if (number <= 1) return;
    std::uint64_t last = number - 1;
    auto next = intervals_.begin();
    while (next != intervals_.end() && next->first <= number) {
      last = std::max(last, next->second);
      next = intervals_.erase(next);
    }
    intervals_.emplace_hint(next, 1, last);
  }
  void erase_below(std::uint64_t number) {
    while (!intervals_.empty() && intervals_.begin()->first < number) {
      const std::uint64_t last = intervals_.begin()->second;
      intervals_.erase(intervals_.begin());
      if (last >= number) intervals_.emplace(number, last);
    }
  }
  [[nodiscard]] std::size_t intervals() const noexcept { return intervals_.size(); }

  friend bool operator==(const number_set&, const number_set&) = default;
  friend auto operator<=>(const number_set&, const number_set&) = default;

 private:
  std::map<std::uint64_t, std::uint64_t> intervals_;  // first, last
};

}  // namespace ferry::inline v0::detail

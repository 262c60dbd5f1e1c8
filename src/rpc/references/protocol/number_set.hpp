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
  /// Inserts all numbers in [1, number). Strong guarantee on std::bad_alloc.
  void insert_below(std::uint64_t number) {
    if (number <= 1) return;
    const auto first = intervals_.begin();
    if (first == intervals_.end() || first->first > number) {
      intervals_.emplace_hint(first, 1, number - 1);
      return;
    }
    auto node = intervals_.extract(first);
    std::uint64_t last = std::max(number - 1, node.mapped());
    while (!intervals_.empty() && intervals_.begin()->first <= number) {
      last = std::max(last, intervals_.begin()->second);
      intervals_.erase(intervals_.begin());
    }
    node.key() = 1;
    node.mapped() = last;
    intervals_.insert(std::move(node));
  }
  void erase_below(std::uint64_t number) noexcept {
    while (!intervals_.empty() && intervals_.begin()->first < number) {
      auto node = intervals_.extract(intervals_.begin());
      if (node.mapped() < number) continue;
      node.key() = number;
      intervals_.insert(std::move(node));
    }
  }
  [[nodiscard]] std::size_t intervals() const noexcept { return intervals_.size(); }

  friend bool operator==(const number_set&, const number_set&) = default;
  friend auto operator<=>(const number_set&, const number_set&) = default;

 private:
  std::map<std::uint64_t, std::uint64_t> intervals_;  // first, last
};

}  // namespace ferry::inline v0::detail

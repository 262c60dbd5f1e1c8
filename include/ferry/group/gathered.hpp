#pragma once

// The result of all_gather: one value for each worker.

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>

namespace ferry::inline v0 {

namespace detail {
[[noreturn]] void throw_not_gathered(std::string_view name);
}  // namespace detail

/// A map from worker names to values, sorted by name. Converts to std::map and similar types. A value type.
template <class T>
class gathered {
 public:
  using key_type = std::string;
  using mapped_type = T;
  using value_type = std::pair<std::string, T>;
  using const_iterator = typename std::vector<value_type>::const_iterator;

  gathered() = default;
  /// `sorted` must be sorted by name.
  explicit gathered(std::vector<value_type> sorted) noexcept : values_(std::move(sorted)) {}

  [[nodiscard]] std::size_t size() const noexcept { return values_.size(); }
  [[nodiscard]] bool empty() const noexcept { return values_.empty(); }
  [[nodiscard]] auto begin() const noexcept { return values_.begin(); }
  [[nodiscard]] auto end() const noexcept { return values_.end(); }
  [[nodiscard]] auto begin() noexcept { return values_.begin(); }
  [[nodiscard]] auto end() noexcept { return values_.end(); }

  [[nodiscard]] bool contains(std::string_view name) const noexcept { return lookup(name) != values_.size(); }
  /// Throws errc::unknown_worker if that worker was not a member.
  [[nodiscard]] const T& at(std::string_view name) const { return values_[checked(name)].second; }
  [[nodiscard]] T& at(std::string_view name) { return values_[checked(name)].second; }

  /// Copies the values; `std::move(result)` moves them.
  template <class Map>
    requires std::same_as<typename Map::mapped_type, T> && std::constructible_from<typename Map::key_type, std::string>
  operator Map() const& {  // NOLINT(google-explicit-constructor): usable as such a map
    return Map(values_.begin(), values_.end());
  }
  template <class Map>
    requires std::same_as<typename Map::mapped_type, T> && std::constructible_from<typename Map::key_type, std::string>
  operator Map() && {  // NOLINT(google-explicit-constructor)
    Map map;
    for (auto& [name, value] : values_) map.emplace(std::move(name), std::move(value));
    values_.clear();
    return map;
  }

  friend bool operator==(const gathered&, const gathered&) = default;

 private:
  [[nodiscard]] std::size_t lookup(std::string_view name) const noexcept {
    std::size_t low = 0;
    std::size_t high = values_.size();
    while (low != high) {
      const std::size_t middle = low + (high - low) / 2;
      if (values_[middle].first < name) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low != values_.size() && values_[low].first == name ? low : values_.size();
  }
  [[nodiscard]] std::size_t checked(std::string_view name) const {
    const std::size_t index = lookup(name);
    if (index == values_.size()) detail::throw_not_gathered(name);
    return index;
  }

  std::vector<value_type> values_;
};

}  // namespace ferry::inline v0

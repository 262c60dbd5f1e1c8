#pragma once

// The in-memory table of all stores, with one implementation of the operations' semantics.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <ferry/store/store.hpp>

namespace ferry::inline v0::detail {

/// Keys, values and versions. Not thread-safe.
class key_table {
 public:
  struct entry {
    std::string value;
    std::uint64_t version;
  };

  /// nullptr if the key is absent.
  [[nodiscard]] const entry* find(std::string_view key) const;
  void set(std::string_view key, std::string value, std::uint64_t version);
  bool erase(std::string_view key);
  /// The entry of the first key that starts with `prefix` and is greater than `after`; nullptr if there is none.
  using iterator = std::map<std::string, entry, std::less<>>::const_iterator;
  [[nodiscard]] iterator first(std::string_view prefix, std::string_view after) const;
  [[nodiscard]] iterator end() const { return entries_.end(); }
  [[nodiscard]] std::vector<store_entry> list(std::string_view prefix) const;
  [[nodiscard]] std::size_t count(std::string_view prefix) const;
  [[nodiscard]] store_change state(std::string_view key) const;
  /// Memory of an entry beside the bytes of its key and its value, about.
  static constexpr std::size_t entry_overhead = 128;
  [[nodiscard]] static std::size_t cost(std::size_t key, std::size_t value) noexcept {
    return entry_overhead + key + value;
  }
  /// The cost of all entries.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  void clear();

 private:
  std::map<std::string, entry, std::less<>> entries_;
  std::size_t bytes_ = 0;
};

/// The value after store::add if the key holds `held`. Throws errc::invalid_argument.
std::int64_t sum_of(const key_table::entry* held, std::string_view key, std::int64_t delta);

/// Whether store::compare_set writes if the key holds `held`.
bool expectation_holds(const key_table::entry* held, std::string_view expected);

}  // namespace ferry::inline v0::detail

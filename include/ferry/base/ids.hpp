#pragma once

// Identities that are sent between workers.

#include <compare>
#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

namespace ferry::inline v0 {

/// A worker's id in its group: 0..32767. Value type.
struct worker_id {
  static constexpr int max = 32767;
  std::int32_t value = -1;
  friend constexpr auto operator<=>(worker_id, worker_id) noexcept = default;
  friend constexpr bool operator==(worker_id, worker_id) noexcept = default;
  /// Destinations may be numbers, and ids compare with numbers: `if (self.id() == 0)`.
  friend constexpr bool operator==(worker_id id, std::int64_t number) noexcept { return id.value == number; }
  /// It travels as an argument or result.
  template <class Archive>
  void serialize(Archive& archive) {
    archive(value);
  }
};

namespace detail {
/// What may stand for a worker's id. A literal 0 is also a null pointer: functions that take names take, or refuse, these, too.
template <class T>
concept worker_number = std::integral<T> && !std::same_as<T, bool>;
/// -1, which no worker has, for a number that is out of range.
template <worker_number T>
constexpr worker_id worker_id_of(T number) noexcept {
  return {std::in_range<std::int32_t>(number) ? static_cast<std::int32_t>(number) : -1};
}
}  // namespace detail

/// One incarnation of a worker: drawn at random when it starts, so that a restarted worker is distinguished from its
/// predecessor.
struct incarnation_id {
  std::uint64_t value = 0;
  friend constexpr auto operator<=>(incarnation_id, incarnation_id) noexcept = default;
  /// A fresh random one (never zero), from the operating system's generator.
  static incarnation_id random();
};

/// An identity unique in a group: the creating worker and a counter there.
struct global_id {
  std::int32_t created_on = -1;
  std::uint64_t local = 0;
  friend constexpr auto operator<=>(const global_id&, const global_id&) noexcept = default;
};

}  // namespace ferry::inline v0

template <>
struct std::hash<ferry::worker_id> {
  std::size_t operator()(ferry::worker_id id) const noexcept { return static_cast<std::size_t>(id.value); }
};
template <>
struct std::hash<ferry::global_id> {
  std::size_t operator()(const ferry::global_id& id) const noexcept {
    return (static_cast<std::size_t>(static_cast<std::uint32_t>(id.created_on)) << 48U) +
           static_cast<std::size_t>(id.local);
  }
};

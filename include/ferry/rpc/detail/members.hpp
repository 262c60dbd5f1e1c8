#pragma once

// The set of workers that take part in a collective operation.

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/ids.hpp>

namespace ferry::inline v0 {

struct all_workers_t {};
/// All workers of the group, for parameters of type `members`.
inline constexpr all_workers_t all_workers{};

/// A list of workers by name, in any order, or all workers of the group. A value type; used as a parameter.
///
///     barrier()      barrier({"worker0", "worker2"})      barrier(names, 5s)      barrier(all_workers, 5s)
class members {
 public:
  members(all_workers_t) noexcept {}       // NOLINT(google-explicit-constructor)
  members(std::vector<std::string> names)  // NOLINT(google-explicit-constructor)
      : names_(std::move(names)), all_(false) {}
  members(std::initializer_list<std::string_view> names) : names_(names.begin(), names.end()), all_(false) {}
  template <detail::worker_number Id>
  members(std::initializer_list<Id>) = delete;  // by name

  [[nodiscard]] bool all() const noexcept { return all_; }
  /// The names as passed to the constructor; empty for all_workers.
  [[nodiscard]] const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::vector<std::string> names_;
  bool all_ = true;
};

}  // namespace ferry::inline v0

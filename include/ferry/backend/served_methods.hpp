#pragma once

// Which methods a worker serves.

#include <cstdint>
#include <vector>

namespace ferry::inline v0 {

/// All methods of the program, or a list. Made by ferry::serve_list<f, g> (rpc/serve.hpp). A value.
class served_methods {
 public:
  /// Every method that the program contains, those of plug-ins included.
  served_methods() noexcept = default;
  /// Those with these ids, and nothing else.
  explicit served_methods(std::vector<std::uint64_t> ids);

  [[nodiscard]] bool everything() const noexcept { return everything_; }
  [[nodiscard]] bool contains(std::uint64_t id) const noexcept { return everything_ || is_listed(id); }

 private:
  [[nodiscard]] bool is_listed(std::uint64_t id) const noexcept;

  bool everything_ = true;
  std::vector<std::uint64_t> ids_;  // sorted
};

}  // namespace ferry::inline v0

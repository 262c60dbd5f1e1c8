#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace ferry::inline v0::detail {

/// For unordered containers with strings as keys: finds by a string_view without making a string. Use with
/// std::equal_to<>.
struct text_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>()(text); }
};

}  // namespace ferry::inline v0::detail

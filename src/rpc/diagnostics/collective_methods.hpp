#pragma once

// The library's own methods that collectives are made of: what shows collectives leaves their messages out.

#include <string_view>

namespace ferry::inline v0::detail {

/// What members of a barrier or gather call at the worker that collects.
inline constexpr std::string_view gather_method = "ferry/gather";

/// Messages between the members of a process_group.
[[nodiscard]] constexpr bool is_group_message(std::string_view method) noexcept {
  return method.starts_with("ferry/group/");
}
[[nodiscard]] constexpr bool is_of_collective(std::string_view method) noexcept {
  return is_group_message(method) || method == gather_method;
}

}  // namespace ferry::inline v0::detail

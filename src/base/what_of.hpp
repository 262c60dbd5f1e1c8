#pragma once

#include <exception>

namespace ferry::inline v0::detail {

/// The text of an exception of a user's type, whose what() may return a null pointer: then it is empty.
inline const char* what_of(const std::exception& thrown) noexcept {
  const char* const text = thrown.what();
  return text ? text : "";
}

}  // namespace ferry::inline v0::detail

#pragma once

// What memory that another process hands over must be, so that no access to it can fail whatever that process does.

#include <string_view>

namespace ferry::inline v0::detail {

/// Why the descriptor is not of ordinary memory whose size cannot change; a literal, empty if it is.
[[nodiscard]] std::string_view why_not_sealed(int descriptor) noexcept;

}  // namespace ferry::inline v0::detail

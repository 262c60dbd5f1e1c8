#pragma once

#include <string_view>

#include <ferry/base/traced_range.hpp>

namespace ferry::inline v0::detail {

/// As traces and pages call it.
std::string_view kind_name(range_kind kind) noexcept;

}  // namespace ferry::inline v0::detail

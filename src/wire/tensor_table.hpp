#pragma once

// Inspects a tensor table before it is decoded.

#include <cstddef>
#include <span>

#include <ferry/wire/frame.hpp>

namespace ferry::inline v0::detail {

/// Whether a tensor is for a device other than the CPU. The table may be invalid; decoding it detects that.
[[nodiscard]] bool names_devices(const frame_header& header, std::span<const std::byte> table) noexcept;

}  // namespace ferry::inline v0::detail

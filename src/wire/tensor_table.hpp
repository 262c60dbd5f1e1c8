#pragma once

// A look at a tensor table before it is decoded.

#include <cstddef>
#include <span>

#include <ferry/wire/frame.hpp>

namespace ferry::inline v0::detail {

/// Whether a tensor is for something else than the CPU. The table may be anything: what is wrong with it shows when it is
/// decoded.
[[nodiscard]] bool names_devices(const frame_header& header, std::span<const std::byte> table) noexcept;

}  // namespace ferry::inline v0::detail

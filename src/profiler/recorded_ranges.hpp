#pragma once

// Ranges of the library, for the recordings of the process.

#include <cstdint>

#include <ferry/base/traced_range.hpp>

#include "recording.hpp"

namespace ferry::inline v0::detail {

/// A recording begins (1) or ends (-1): ranges are seen while there is any, and the work of devices while there is one that
/// measures.
void count_recordings(int change, bool measures) noexcept;

/// The event that code of this thread is in: the innermost range, if one has begun since `here` is in force. Null: no value is.
[[nodiscard]] std::uint64_t event_here(const recording_in_force* here) noexcept;
/// The system's number of this thread.
[[nodiscard]] std::uint32_t thread_here() noexcept;

}  // namespace ferry::inline v0::detail

#pragma once

// Ranges in the timelines of NVIDIA's tools, by NVTX: what such a tool loads into the process sees them.

#include <cstdint>
#include <string_view>

namespace ferry::inline v0::detail {

/// Functions of NVTX, in a domain of ferry's. Thread-safe. Names are cut off at 255 bytes.
struct timeline {
  /// A range of this thread, within the last one that has not ended.
  void (*push)(std::string_view name) noexcept;
  /// Ends the last one of this thread.
  void (*pop)() noexcept;
  /// A range that any thread may end, by what this returns.
  std::uint64_t (*start)(std::string_view name) noexcept;
  void (*end)(std::uint64_t which) noexcept;
};

/// Whether the environment names a tool's library. Loads nothing; false in builds without NVTX.
[[nodiscard]] bool timeline_wanted() noexcept;
/// Null: there is no tool. The first call loads the library that the environment names.
[[nodiscard]] const timeline* timeline_of_tool() noexcept;

}  // namespace ferry::inline v0::detail

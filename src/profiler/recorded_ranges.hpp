#pragma once

// Ranges of the library, for the recordings of the process.

#include <cstdint>
#include <string_view>

#include <ferry/base/traced_range.hpp>

#include "../device/cuda/nvtx.hpp"
#include "recording.hpp"

namespace ferry::inline v0::detail {

/// A recording begins: ranges are seen while there is any, and the work of devices while there is one that measures.
void begin_recording(bool measures) noexcept;
/// One ends. After that of a request ranges are seen still, until one begins that nothing records: requests that are recorded come
/// many behind each other.
void end_recording(bool measures, bool of_request) noexcept;
/// A range has begun that nothing records.
void found_no_recording() noexcept;

/// The timeline of NVIDIA's tools, which has the ranges of the process, whether anything records or not. Null: there is none,
/// which costs a relaxed load.
[[nodiscard]] const timeline* timeline_here() noexcept;

/// A range of that timeline, in an object that may be destroyed by another thread.
class shown_range {
 public:
  shown_range() = default;
  ~shown_range() { end(); }
  shown_range(const shown_range&) = delete;
  shown_range& operator=(const shown_range&) = delete;
  /// `stays`: it ends on this thread, so that the timeline shows it within those around it.
  void begin(const timeline& on, std::string_view name, bool stays) noexcept;
  /// Does nothing if none has begun.
  void end() noexcept {
    if (on_) [[unlikely]]
      end_now();
  }

 private:
  void end_now() noexcept;
  const timeline* on_ = nullptr;
  std::uint64_t which_ = 0;   // of one that does not stay
  std::uint32_t thread_ = 0;  // of one that does
};

/// The event that code of this thread is in: the innermost range, if one has begun since `here` is in force. Null: no value is.
[[nodiscard]] inline std::uint64_t event_within(const profiled_thread& thread,
                                                const recording_in_force* here) noexcept {
  const std::uint64_t around = here ? here->parent : 0;
  const open_range* inner = thread.innermost;
  return inner && inner->context_parent == around ? inner->number : around;
}

}  // namespace ferry::inline v0::detail

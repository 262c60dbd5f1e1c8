#include "stream_use.hpp"

#include <exception>
#include <mutex>
#include <vector>

#include <ferry/device/traits.hpp>

#include "device_state.hpp"

namespace ferry::inline v0::detail {

stream_use use_of_stream(const device_state& state, void* handle) noexcept {
  try {
    if (state.operations->capturing(state.where, handle)) return stream_use::captured;
    return state.operations->stream_done(state.where, handle) ? stream_use::idle : stream_use::busy;
  } catch (const std::exception&) {
    return stream_use::busy;
  }
}

void synchronize_idle_streams(device_state& state) noexcept {
  if (state.operations->immediate) return;
  // Nothing was ever freed, and to ask the default stream would make a context.
  if (state.total_allocations.load(std::memory_order_relaxed) == 0) return;
  try {
    std::vector<void*> all{state.operations->default_stream(state.where)};
    {
      const std::lock_guard lock(state.mutex);
      all.insert(all.end(), state.streams.begin(), state.streams.end());
    }
    for (void* each : all) {
      if (use_of_stream(state, each) == stream_use::idle) state.operations->synchronize_stream(state.where, each);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): the next use of the device says so
  }
}

}  // namespace ferry::inline v0::detail

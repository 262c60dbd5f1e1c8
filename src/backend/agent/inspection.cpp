// The diagnostic views of an agent.

#include <algorithm>
#include <mutex>

#include "native_agent.hpp"

namespace ferry::inline v0::detail {

std::optional<std::chrono::nanoseconds> native_core::silence(worker_id of) const noexcept {
  const peer* place = peers_.at(of);
  if (!place || of == self_.id() || options_.heartbeat_interval.is_never()) return std::nullopt;
  std::lock_guard lock(place->mutex);
  if (!place->live.connected() && !place->live.suspect) return std::nullopt;
  const std::chrono::nanoseconds known = std::max(clock::now() - place->live.heard, clock::duration{});
  // A message arrived since the last tick, which has yet to record it.
  if (place->heard.load(std::memory_order_relaxed)) return std::min(known, options_.heartbeat_interval.duration());
  return known;
}

}  // namespace ferry::inline v0::detail

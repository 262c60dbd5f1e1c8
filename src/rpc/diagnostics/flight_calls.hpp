#pragma once

// Which calls had not ended, by the events that a worker recorded.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ferry/rpc/debug.hpp>

#include "flight_recorder.hpp"

namespace ferry::inline v0::detail {

/// What is known beside the events.
struct flight_setting {
  worker_id self = {};
  bool complete = false;    ///< the events are all that there were, not only the last ones
  std::int64_t places = 0;  ///< num_worker_threads
  std::int64_t now_ns = 0;  ///< on the clock of the events; ages are relative to it
  std::function<worker_info(worker_id id)> peer;
  std::function<std::string(std::uint64_t id)> method;
};

// Both take the events in the order of their numbers, and give calls with the oldest first.

/// Calls made whose end is not among the events.
[[nodiscard]] std::vector<pending_call_info> open_calls_of(const std::vector<flight_entry>& events,
                                                           const flight_setting& setting);
/// Requests received whose end is not among the events. Whether one that says nothing of its handler waited for a place is
/// told from how many others had one.
[[nodiscard]] std::vector<served_call_info> open_requests_of(const std::vector<flight_entry>& events,
                                                             const flight_setting& setting);

}  // namespace ferry::inline v0::detail

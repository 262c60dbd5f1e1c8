#pragma once

// Recording a running group from outside.

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include <ferry/profiler/profile.hpp>
#include <ferry/profiler/session.hpp>
#include <ferry/rpc/group_observer.hpp>

namespace ferry::inline v0::profiler {

struct group_recording {
  /// Of all processes that were recorded, on the clock of the first worker; empty if there was none.
  profile merged;
  /// The others, and why not: lost, did not answer, were built without the profiler.
  std::vector<std::pair<worker_info, std::string>> missing;
};

/// Records everything that the processes of a group do for `length`, as a process_scope in each of them would, and merges
/// that. Where several workers are in a process, the first one is asked. Blocks for `length`, and for what the workers need to
/// answer. If this process ends meanwhile, recording ends. Throws std::bad_alloc, std::system_error if there are no threads.
[[nodiscard]] group_recording record_group(group_observer& group, std::chrono::nanoseconds length,
                                           const options& how = {});

}  // namespace ferry::inline v0::profiler

#pragma once

// What is wrong with a group, as far as one look shows it.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "group_index.hpp"
#include "observation.hpp"

namespace ferry_top {

/// A call that waits, and where it stands. Refers to the observation.
struct waiting_call {
  const observed* caller = nullptr;
  const ferry::pending_call_info* call = nullptr;
  const ferry::served_call_info* at_callee = nullptr;  ///< null: the callee does not have it, or could not be asked
};

struct finding {
  enum class kind { oldest_call, collective, cycle, bottleneck, slow_worker, not_answering, lost };
  kind what{};
  std::string text;                  ///< whole sentences
  std::vector<std::string> workers;  ///< that it is about, the ones to look at first
};
[[nodiscard]] std::string to_string(finding::kind what);

struct diagnosis {
  /// The calls of all workers that wait for at least `older_than`, the oldest first.
  std::vector<waiting_call> waiting;
  /// The collectives that wait for as long, the longest wait first.
  std::vector<waiting_collective> collectives;
  /// Lost workers and those that do not answer; the oldest call that waits, with the calls that it waits for;
  /// collectives that wait for members that have not called them; the shortest cycle of workers that wait for each other; the worker at which most of the oldest calls end; a worker whose handlers take
  /// much longer than those of the others, if the look has events.
  std::vector<finding> findings;
};

/// Of several workers of one name (files of earlier runs), the latest counts. The observation must outlive the result.
[[nodiscard]] diagnosis diagnose(const observation& of, std::chrono::nanoseconds older_than);

}  // namespace ferry_top

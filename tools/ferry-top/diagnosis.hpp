#pragma once

// What is wrong with a group, as far as one look shows it.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "observation.hpp"

namespace ferry_top {

/// A call that waits, and where it stands.
struct waiting_call {
  std::string caller;
  std::string callee;
  std::string method;
  std::uint64_t id = 0;
  std::chrono::nanoseconds age{0};
  std::string at_caller;  ///< its phase there
  std::string at_callee;  ///< its phase there; empty: the callee does not have it, or could not be asked
};

struct finding {
  enum class kind { oldest_call, cycle, bottleneck, slow_worker, not_answering, lost };
  kind what{};
  std::string text;                  ///< whole sentences
  std::vector<std::string> workers;  ///< that it is about, the ones to look at first
};
[[nodiscard]] std::string to_string(finding::kind what);

/// The calls of all workers that wait for at least `older_than`, the oldest first.
[[nodiscard]] std::vector<waiting_call> waiting_calls(const observation& of, std::chrono::nanoseconds older_than);

/// Lost workers and those that do not answer; the oldest call that waits, with the calls that it waits for; the shortest
/// cycle of workers that wait for each other; the worker at which most waiting calls end; a worker whose handlers take
/// much longer than those of the others, if the look has events.
[[nodiscard]] std::vector<finding> findings(const observation& of, std::chrono::nanoseconds older_than);

}  // namespace ferry_top

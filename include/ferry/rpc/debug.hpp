#pragma once

// For people who look for a fault: which calls hang, and where. docs/debugging.md shows how to use it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/backend/agent.hpp>

namespace ferry::inline v0 {

/// A call that this worker has made and that has not ended, at one moment.
struct pending_call_info {
  std::uint64_t id = 0;  ///< the same in traces and flight records of both ends, until it has ended
  std::string method = {};
  worker_info peer = {};
  call_phase phase{};
  std::chrono::nanoseconds age{};  ///< since it was made
  deadline until = {};             ///< when the caller gives up
  std::uint64_t bytes = 0;         ///< of the request, tensors included
  std::string transport = {};      ///< "unix", "tcp", ...; empty: no connection is open
  std::string route = {};          ///< where the connection leads
};
/// One line: "call 100000000 of 'f' to worker_info(id=1, name=worker1): waiting for the reply since 2.1 s, ..."
std::string to_string(const pending_call_info& call);

enum class served_phase : std::uint8_t {
  queued,  ///< waits for one of the num_worker_threads places
  running,
  waiting,  ///< its handler waits in ferry: for a nested call, a future
  later,    ///< its handler has returned a future or a task, which is not ready
};
std::string_view to_string(served_phase phase) noexcept;

/// A request that this worker has got and not answered, at one moment.
struct served_call_info {
  std::uint64_t id = 0;  ///< the caller's; one-way calls have none: 0
  std::string method = {};
  worker_info caller = {};
  served_phase phase{};
  std::chrono::nanoseconds age{};  ///< since it arrived
  deadline until = {};             ///< when the caller gives up
  std::uint64_t bytes = 0;         ///< of the request, tensors included
  bool one_way = false;            ///< made with notify
  bool unwanted = false;           ///< the caller has cancelled, timed out or gone
};
std::string to_string(const served_call_info& call);

/// A figure that somebody adds to worker::debug_info().
struct debug_figure {
  std::string name;  ///< "my_cache.entries"
  /// Called on the thread that asks, by several at once. What it throws takes the place of the value.
  std::function<std::string()> value;
};

}  // namespace ferry::inline v0

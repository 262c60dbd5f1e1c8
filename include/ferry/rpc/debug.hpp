#pragma once

// For people who look for a fault: which calls hang, and where. docs/debugging.md shows how to use it.

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
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
  /// How long ago the peer was heard of, by heartbeats too; nothing if it runs in this process or was never reached.
  std::optional<std::chrono::nanoseconds> silence = {};
};
/// One line: "call 100000000 of 'f' to worker_info(id=1, name=worker1): waiting for the reply since 2.1 s, ..."
std::string to_string(const pending_call_info& call);

enum class served_phase : std::uint8_t {
  queued,  ///< waits for one of the num_worker_threads places, or until answers to its caller are written
  held,  ///< waits for its object to be made or for its turn there, or until references among its arguments are confirmed
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

/// A figure that a library or program adds to worker::debug_info().
struct debug_figure {
  std::string name;  ///< "my_cache.entries"
  /// Called on the thread that asks, by several at once. What it throws takes the place of the value.
  std::function<std::string()> value;
};

/// Whenever the process gets that signal (SIGUSR1, for example), the flight records of all its workers are written to `path`,
/// as worker::flight_record() has them; if that is a directory, to ferry-PROCESS.json in it. The file appears, and is
/// replaced, in one step; an error is logged. A thread of its own does it, also when all others are busy. Call it again to
/// change the path. Throws errc::invalid_argument for signals that cannot be caught or that the program handles itself,
/// errc::system_failure, errc::forked_process. Thread-safe. Child processes made with fork() take no notice of the signal.
void record_on_signal(int number, std::string path);

}  // namespace ferry::inline v0

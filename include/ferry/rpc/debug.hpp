#pragma once

// Diagnostics: pending and served calls, figures, flight records. docs/debugging.md shows how to find calls that hang.

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

/// A snapshot of a call that this worker has made and that has not ended.
struct pending_call_info {
  std::uint64_t id = 0;  ///< the same in traces and flight records of both ends; unique until the call has ended
  std::string method = {};
  worker_info peer = {};
  call_phase phase{};
  std::chrono::nanoseconds age{};  ///< since it was made
  deadline until = {};             ///< the caller's deadline
  std::uint64_t bytes = 0;         ///< of the request, tensors included
  std::string transport = {};      ///< "unix", "tcp", ...; empty: no connection is open
  std::string route = {};          ///< the remote end of the connection
  /// Time since the last message or heartbeat from the peer; empty if it runs in this process or was never reached.
  std::optional<std::chrono::nanoseconds> silence = {};
};
/// One line: "call 100000000 of 'f' to worker_info(id=1, name=worker1): waiting for the reply since 2.1 s, ..."
std::string to_string(const pending_call_info& call);

enum class served_phase : std::uint8_t {
  queued,  ///< waits for a num_worker_threads slot, or until answers to its caller are written
  held,    ///< waits until its object has been made, its turn comes, or references among its arguments are confirmed
  running,
  waiting,  ///< its handler waits in ferry: for a nested call, a future
  later,    ///< its handler has returned a future or a task, which is not ready
};
std::string_view to_string(served_phase phase) noexcept;

/// A snapshot of a request that this worker has received and not answered.
struct served_call_info {
  std::uint64_t id = 0;  ///< the caller's id of the call; 0 for one-way calls
  std::string method = {};
  worker_info caller = {};
  served_phase phase{};
  std::chrono::nanoseconds age{};  ///< since it arrived
  deadline until = {};             ///< the caller's deadline
  std::uint64_t bytes = 0;         ///< of the request, tensors included
  bool one_way = false;            ///< made with notify
  bool unwanted = false;           ///< the caller has cancelled, timed out or terminated
};
std::string to_string(const served_call_info& call);

/// A snapshot of a collective that this worker has begun and that has not ended here, or of a barrier or gather for which it collects
/// the contributions.
struct pending_collective_info {
  std::string operation = {};  ///< "all_reduce(sum) of f32 [1000]", "receive of f32 [4] from worker0", "barrier"
  std::string group = {};  ///< the name of the process_group; empty: of the free functions barrier() and all_gather()
  std::uint64_t group_id = 0;  ///< the same at all members; 0: of the free functions
  std::int32_t channel = -1;   ///< -1: of all members; otherwise between two, from * size + to
  std::uint64_t number = 0;    ///< within the group and channel, the same at all members
  /// That take part: of a group by rank, otherwise by name. In a worker_snapshot, of collectives of all members of a group, empty:
  /// group_progress_info has them.
  std::vector<std::string> members = {};
  std::chrono::nanoseconds age{};  ///< since it began here
  deadline until = {};
  /// The members that have not called it, as far as this worker knows: of barriers and gathers all of them, of collectives of groups
  /// none. What each member shows by itself tells more (ferry-top does).
  std::vector<std::string> missing = {};
};
/// One line: "all_reduce(sum) of f32 [3], collective 17 of group 'trainers': since 2.1 s, 57.9 s left"
std::string to_string(const pending_collective_info& collective);

/// How far this worker is in a process_group.
struct group_progress_info {
  std::uint64_t id = 0;  ///< as pending_collective_info::group_id
  std::string name = {};
  std::vector<std::string> members = {};  ///< by rank
  std::uint64_t begun = 0;                ///< collectives of all members that it has begun: numbers below that
};

/// A figure that a library or program adds to worker::debug_info().
struct debug_figure {
  std::string name;  ///< "my_cache.entries"
  /// Called on the requesting thread, possibly by several concurrently. If it throws, the error text replaces the
  /// value.
  std::function<std::string()> value;
};

/// Installs a handler for a signal (SIGUSR1, for example) that writes the flight records of all workers of the process
/// to `path`, in the format of worker::flight_record(); if `path` is a directory, to the file ferry-PROCESS.json in it.
/// The file is created or replaced atomically; errors are logged. A dedicated thread writes it, so this works when all
/// other threads are busy. Call again to change the path. Throws errc::invalid_argument for signals that cannot be
/// caught or that the program already handles, errc::system_failure, errc::forked_process. Thread-safe. Child processes
/// created with fork() ignore the signal.
void record_on_signal(int number, std::string path);

}  // namespace ferry::inline v0

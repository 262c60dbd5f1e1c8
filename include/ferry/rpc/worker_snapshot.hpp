#pragma once

// What a worker does at one moment, and what it did last: the content of a flight record, as values.

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/rpc/debug.hpp>

namespace ferry::inline v0 {

/// One of the last events of a worker. docs/debugging.md lists them.
struct recorded_event {
  std::uint64_t number = 0;    ///< events of a worker are counted from 0
  std::int64_t steady_ns = 0;  ///< when, on the steady clock of the worker's machine
  std::string event = {};      ///< "call_started", ...
  worker_id peer = {};
  std::uint64_t call = 0;   ///< 0: none
  std::string method = {};  ///< empty: none
  std::uint64_t bytes = 0;
  errc code = {};         ///< errc{}: none
  std::string text = {};  ///< empty: none, or no longer kept
};

/// How messages reach a peer.
struct snapshot_route {
  worker_info peer = {};
  std::string transport = {};    ///< of the connection for calls to it; empty: none is open
  std::string description = {};  ///< of the connection
};

/// Value type. The ages of calls and collectives are those of the moment `steady_ns`.
struct worker_snapshot {
  std::string reason = {};  ///< why it was made: "asked for", "timeout", ...
  worker_info worker = {};
  incarnation_id incarnation = {};
  std::int64_t process = 0;
  std::uint64_t process_mark = 0;  ///< drawn by the process: workers of one process have the same; 0: not known
  std::chrono::system_clock::time_point time = {};
  std::int64_t steady_ns = 0;                         ///< the same moment on the steady clock of the worker's machine
  std::vector<pending_call_info> pending_calls = {};  ///< oldest first, as `served_calls`
  std::vector<served_call_info> served_calls = {};
  std::vector<pending_collective_info> pending_collectives = {};  ///< oldest first
  std::vector<group_progress_info> groups = {};                   ///< the process_groups that it has handles of
  std::vector<peer_traffic> traffic = {};
  std::vector<snapshot_route> routes = {};  ///< to the peers in `traffic`
  std::vector<std::pair<std::string, std::string>> debug_info = {};
  std::uint64_t events_so_far = 0;
  std::vector<recorded_event> events = {};  ///< the last ones, by time
};

/// A flight record: the JSON object that docs/debugging.md describes.
[[nodiscard]] std::string to_json(const worker_snapshot& of);

/// What a worker did last, by the file that it recorded its events in (worker_config::flight_directory) and that a process
/// which was killed has left behind. `pending_calls` and `served_calls` are those whose end was not recorded: without
/// deadlines, routes and silences, and with the phases that the events suggest. There are no collectives and groups, no traffic and no
/// debug_info. `time` and `steady_ns` are those of the last event. The file of a worker that still runs can be read, too; events that
/// are being written meanwhile are missing. Throws errc::malformed for a file that is damaged, cut short, or another one,
/// errc::version_mismatch for one of another release, errc::system_failure if it cannot be read. Thread-safe.
[[nodiscard]] worker_snapshot read_flight_file(const std::string& path);

}  // namespace ferry::inline v0

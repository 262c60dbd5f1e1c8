#pragma once

// Profiles of everything that a process does, and of a group whose processes were recorded at the same time.

#include <memory>
#include <vector>

#include <ferry/profiler/profile.hpp>
#include <ferry/profiler/session.hpp>

namespace ferry::inline v0 {
class worker;
namespace detail {
class worker_core;
}

namespace profiler {

/// While it is entered, everything that begins in this process is recorded, on all threads and of all its workers: calls, the
/// requests that are served, ranges, operations and passes; whether sessions or server scopes record them, too, or not. It can be
/// entered and left at any time, by any thread, while calls are under way; several at once each get all events.
///
///     ferry::profiler::process_scope everything;
///     everything.enter();
///     ...
///     const ferry::profiler::profile found = everything.exit();
///
/// Made to be used through a reference as well: then the request that calls exit() is one of those that have not ended.
/// Thread-safe, but for moves. Without any it costs an operation, a range, a request and a call one relaxed load and a branch each.
class process_scope {
 public:
  /// Of the process's current worker. Throws errc::not_initialized.
  explicit process_scope(const options& how = {});
  /// The profile has that worker's id, also for the events of threads that do not belong to a certain worker.
  explicit process_scope(const worker& of, const options& how = {});
  /// Exits, and drops what was recorded.
  ~process_scope();
  process_scope(process_scope&&) noexcept;
  process_scope& operator=(process_scope&&) noexcept;

  /// What began before is not recorded, but for its parts that begin from now on. Throws errc::invalid_argument if it is entered
  /// already, std::bad_alloc.
  void enter();
  /// What was recorded; profile::unfinished counts what had begun since and has not ended. Of each thread options::events_per_thread
  /// events are kept, and no more than 65 times as many together; the oldest ones are lost, and counted. With options::remote
  /// callees record and send their events back, as for a session; what this process has recorded itself does not occur twice.
  /// With options::device_times it waits for devices, no longer than options::device_wait. Throws errc::invalid_argument if it is
  /// not entered.
  profile exit();

  // For the library.
  process_scope(detail::worker_core& of, const options& how);
  struct state;

 private:
  std::shared_ptr<state> state_;
};

/// Profiles of several processes, recorded by process scopes at the same time, as one on the clock of the first. `clocks` has, for
/// the worker of each other profile (profile::node), its steady clock minus the one of the first profile's worker, and how far off
/// that may be, by which the events of that profile are uncertain.
///
/// Calls lead to their handlers: a handler's parent is the call, at whichever worker that was made. A handler that its own worker
/// has recorded and that also came back with the reply is kept as its own worker has it, with what it did. What came with replies
/// of workers that have no profile here, or did not record the request, stays.
///
/// A process has one profile, whatever the number of its workers. Needs no worker, and time and memory in proportion to the events.
/// Throws errc::invalid_argument, naming the worker, if two profiles are of one worker, if a clock is missing, or if one is given by
/// numbers that cannot be (more than 36 years, an uncertainty below zero).
[[nodiscard]] profile merged_group(std::vector<profile> of_each_worker, const std::vector<clock_offset>& clocks);

}  // namespace profiler
}  // namespace ferry::inline v0

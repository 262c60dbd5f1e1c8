#pragma once

// Profiles of what a piece of code does, at this worker and at those that it calls.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include <ferry/profiler/profile.hpp>

namespace ferry::inline v0 {
class worker;

namespace profiler {

struct options {
  bool shapes = false;  ///< those of the inputs of operations
  bool memory = false;  ///< bytes of the tensors that operations make
  /// How long the work that operations queue on devices takes there (event::device_time): costs two events of the device for each,
  /// which the host does not wait for until the session ends.
  bool device_times = false;
  bool remote = true;  ///< callees record, too, and send their events back with the reply
  /// Of each thread that takes part. Then the oldest ones are overwritten, and profile::lost counts them. Of what came back with
  /// replies, the last 64 MiB are kept; of inner sessions, the last ones with 16 times as many events together.
  std::size_t events_per_thread = std::size_t{1} << 16U;
  /// How long the end of a session, or of a server scope, waits for devices, here and at callees, to have done what was recorded.
  /// Zero: not at all. What they have not done then has no time.
  std::chrono::nanoseconds device_wait = std::chrono::seconds(5);
};

/// Records while it exists: the calls that the code of its scope makes, the operations that it runs, ranges, and what these calls
/// do at their callees. Coroutines, continuations and callbacks made in the scope are part of it, on whatever thread they run.
///
///     ferry::profiler::session recorded(self);
///     self.rpc_sync<step>("worker1", batch);
///     const ferry::profiler::profile found = recorded.finish();
///
/// Sessions nest: the events of the inner one are the outer one's, too. Like any scope of context values it may be held across a
/// co_await in a coroutine of ferry's.
class session {
 public:
  /// Of the process's current worker. Throws errc::not_initialized.
  explicit session(const options& how = {});
  explicit session(const worker& of, const options& how = {});
  /// Drops what was recorded, unless finish() was called.
  ~session();
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  /// Ends the recording. Once. Calls and ranges that have not ended are counted (profile::unfinished), and what they do later is not
  /// recorded. With options::device_times it waits for the devices, and asks callees for times that came too late for their replies.
  /// Throws errc::invalid_argument the second time.
  profile finish();

 private:
  struct state;
  std::unique_ptr<state> state_;
};

/// A part of the program with a name of its own. What it calls and runs are its children. Costs a branch without a session.
///
///     { const ferry::profiler::range part("load batch"); ... }
class range {
 public:
  explicit range(std::string_view name);
  /// An exception that leaves its scope marks it as failed.
  ~range();
  range(const range&) = delete;
  range& operator=(const range&) = delete;

 private:
  struct state;
  state* state_ = nullptr;
};

}  // namespace profiler
}  // namespace ferry::inline v0

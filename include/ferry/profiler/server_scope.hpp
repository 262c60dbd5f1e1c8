#pragma once

// Profiles of all requests that a process serves, from any worker.

#include <memory>
#include <vector>

#include <ferry/profiler/profile.hpp>
#include <ferry/profiler/session.hpp>

namespace ferry::inline v0::profiler {

/// While it is entered, each request that a worker of this process begins to serve is recorded, from any caller. Several may be
/// entered at once: each gets all events. Made to be used through a reference:
///
///     auto there = self.remote<make_server_scope>("server");
///     there.rpc_sync<&ferry::profiler::server_scope::enter>();
///     ...
///     std::vector<profile> requests = there.rpc_sync<&ferry::profiler::server_scope::exit>();
///
/// Without any it costs a request one relaxed load and a branch.
class server_scope {
 public:
  server_scope();
  explicit server_scope(const options& how);
  /// Exits.
  ~server_scope();
  server_scope(server_scope&&) noexcept;
  server_scope& operator=(server_scope&&) noexcept;

  /// Throws errc::invalid_argument if it is entered already.
  void enter();
  /// One profile for each request that began and was answered meanwhile, in the order of the answers; of the last ones, with 16 times
  /// options::events_per_thread events together: profile::lost of the first one counts those of earlier ones, too. Throws
  /// errc::invalid_argument if it is not entered.
  std::vector<profile> exit();

  struct state;  ///< for the library

 private:
  std::shared_ptr<state> state_;
};

/// All of them as one.
[[nodiscard]] profile merged(const std::vector<profile>& requests);

}  // namespace ferry::inline v0::profiler

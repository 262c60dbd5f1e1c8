#pragma once

// What a worker is started with.

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/device_map.hpp>
#include <ferry/backend/flow_limits.hpp>
#include <ferry/backend/served_methods.hpp>
#include <ferry/base/time.hpp>
#include <ferry/transport/transport.hpp>

namespace ferry::inline v0 {

/// Options that every backend understands; a backend's own options derive from it.
struct rpc_options {
  /// Default of every call without a timeout of its own; no_timeout (or zero) for never.
  timeout rpc_timeout = std::chrono::seconds(60);
  /// How the workers find each other: env://, tcp://host:port, file://path, or a scheme of one's own.
  std::string init_method = "env://";
  /// How many handlers run at once; one that waits in ferry gives its place to another.
  int num_worker_threads = 16;
  /// How many handlers may wait at once, each on a thread of its own; the next one gets errc::resource_exhausted.
  int max_blocked_handlers = 1024;
  /// How much of the worker's memory calls may take.
  flow_limits flow = {};
  /// How often workers with open connections tell each other that they live; no_timeout: never, and then nobody is taken
  /// for dead for being silent. The same in the whole group.
  timeout heartbeat_interval = std::chrono::milliseconds(500);
  /// Who was not heard for so long is declared dead; at least five intervals. The same in the whole group.
  timeout lease = std::chrono::seconds(5);
  /// How many events the flight recorder keeps, rounded up to a power of two; 0: it is off. 64 bytes each.
  int flight_events = 1024;
  /// A directory or a file: when a call times out, the flight record is written there, at most every ten seconds. Empty: not.
  std::string record_on_timeout = {};
  /// Names of the transports to use, best first; empty: all that the program was built with, by priority.
  std::vector<std::string> transports = {};
  transport_options transport = {};
  /// What every worker of the group knows and nobody else: each connection, and the store served by rank 0, begins with a
  /// proof of it at both ends. Up to 4096 bytes, best 32 random ones. Empty: FERRY_SECRET, else the file FERRY_SECRET_FILE;
  /// none of these: no proof is asked for, and a peer that offers one is refused.
  std::string secret = {};
  /// Starts although other machines can reach this worker, without a secret and without a list of what it serves. Also
  /// FERRY_ALLOW_UNAUTHENTICATED=1.
  bool allow_unauthenticated = false;
  /// By worker: on which of its devices tensors of this worker arrive. Its results come back the other way. Without a map for a
  /// worker only CPU tensors travel to it. docs/device_maps.md.
  device_map_table device_maps = {};
  /// The devices beside the CPU that this worker's messages may use; empty: those in its maps, and in those of others to it.
  std::vector<device> devices = {};

  /// Adds to the map for `worker`, which need not be there yet. Throws errc::invalid_argument if a device is mapped to another
  /// one already.
  ///
  ///     options.set_device_map("worker1", {{"cuda:0", "cuda:1"}});
  void set_device_map(std::string_view worker, const device_map& map) {
    detail::add_device_map(device_maps, worker, map);
  }
  /// Takes the place of `devices`. Throws errc::invalid_argument if the CPU is among them.
  void set_devices(std::initializer_list<device_spec> list) { devices = detail::declared_devices(list); }

  /// Throws errc::invalid_argument, naming the option.
  void check() const;
};

/// worker_config::world_size of a group that has no fixed size, whatever WORLD_SIZE says.
inline constexpr int dynamic_world = -1;
/// worker_config::rank in a dynamic group: the lowest one that is free.
inline constexpr int any_rank = -2;

/// Who a worker is and how it finds its group, and, flat, the options that every backend understands. Every member has an
/// initialiser, so that compilers do not warn of those that a braced list leaves out.
struct worker_config {
  /// Unique in the group. Empty: "worker<rank>".
  std::string name = {};
  /// 0..world_size-1; -1: from the init method or RANK. any_rank: in a dynamic group whichever is free.
  int rank = -1;
  /// Number of workers; 0: from the init method or (env://) WORLD_SIZE. Where these say nothing, or with dynamic_world, the
  /// group is dynamic: it has no size, and workers join and leave it at any time.
  int world_size = 0;
  std::string init_method = "env://";
  timeout rpc_timeout = std::chrono::seconds(60);
  int num_worker_threads = 16;
  int max_blocked_handlers = 1024;
  flow_limits flow = {};
  timeout heartbeat_interval = std::chrono::milliseconds(500);
  timeout lease = std::chrono::seconds(5);
  int flight_events = 1024;
  std::string record_on_timeout = {};
  std::vector<std::string> transports = {};
  transport_options transport = {};
  std::string secret = {};
  bool allow_unauthenticated = false;
  device_map_table device_maps = {};
  std::vector<device> devices = {};
  /// How long to wait for the rest of the group to appear; unset: rpc_timeout.
  timeout init_timeout = {};
  /// How long the destructor of the worker waits for a graceful shutdown.
  timeout exit_timeout = std::chrono::seconds(60);
  /// Whether a graceful shutdown that ends with references of others to objects of this worker (a worker that never answered
  /// kept them) only logs what they are; else it throws errc::reference_leaked, once the local end is done.
  bool ignore_rref_leaks = true;
  /// Whatever the others shall know of this worker (worker::metadata): bytes, at most max_metadata.
  std::string metadata = {};
  static constexpr std::size_t max_metadata = std::size_t{64} << 10U;
  /// What others may call: ferry::serve_list<f, g>, and nothing else then. Unset: what ferry::serve<...>() listed in this
  /// process before the worker started, else every method of the program.
  served_methods serve = {};

  /// As in rpc_options.
  void set_device_map(std::string_view worker, const device_map& map) {
    detail::add_device_map(device_maps, worker, map);
  }
  void set_devices(std::initializer_list<device_spec> list) { devices = detail::declared_devices(list); }

  [[nodiscard]] rpc_options options() const;
};

namespace detail {
/// For a worker that is given both: what one of them leaves at its default, the other says. Throws
/// errc::invalid_argument naming the option that both set, and differently.
void reconcile(worker_config& config, rpc_options& options);
}  // namespace detail

}  // namespace ferry::inline v0

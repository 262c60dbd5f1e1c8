#pragma once

// The configuration of a worker.

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/backend/device_map.hpp>
#include <ferry/backend/flow_limits.hpp>
#include <ferry/backend/served_methods.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>
#include <ferry/store/store_schemes.hpp>
#include <ferry/transport/transport.hpp>

namespace ferry::inline v0 {

class interceptor;  // <ferry/rpc/interceptor.hpp>

/// Options that every backend understands; a backend's own options derive from it.
struct rpc_options {
  /// Default of every call without a timeout of its own; no_timeout (or zero) for never.
  timeout rpc_timeout = std::chrono::seconds(60);
  /// How the workers find each other: env://, tcp://host:port, file://path, or a custom scheme.
  std::string init_method = "env://";
  /// How many handlers run at once; one that waits in ferry releases its slot to another.
  int num_worker_threads = 16;
  /// How many handlers may wait at once, each on a thread of its own; the next one gets errc::resource_exhausted.
  int max_blocked_handlers = 1024;
  /// How much of the worker's memory calls may take.
  flow_limits flow = {};
  /// Interval of heartbeats between workers with open connections; no_timeout: none, and silence never counts as death.
  /// The same in the whole group.
  timeout heartbeat_interval = std::chrono::milliseconds(500);
  /// A worker that is silent for this long is declared dead; at least five intervals. The same in the whole group.
  timeout lease = std::chrono::seconds(5);
  /// How many events the flight recorder keeps, rounded up to a power of two; 0 disables it. 64 bytes each.
  int flight_events = 1024;
  /// A directory: the flight recorder keeps its events there, in the file ferry-WORKER-PROCESS.flight, which stays when the
  /// process is killed (docs/debugging.md). If no file can be made there, a warning is logged, and the events are kept in
  /// memory. Empty: FERRY_FLIGHT_DIRECTORY, else in memory.
  std::string flight_directory = {};
  /// A directory or a file: when a call times out, the flight record is written there, at most every ten seconds.
  /// Empty: off.
  std::string record_on_timeout = {};
  /// How many observers (ferry-top and others, see group_observer) may watch this worker at once; 0: none.
  int max_observers = 8;
  /// Names of the transports to use, best first; empty: all that the program was built with, by priority.
  std::vector<std::string> transports = {};
  transport_options transport = {};
  /// A secret shared by all workers of the group: each connection, and each client of the store served by rank 0,
  /// begins with a mutual proof of it. Up to 4096 bytes; 32 random ones are recommended. Empty: FERRY_SECRET, else the
  /// file FERRY_SECRET_FILE; without these no proof is required, and a peer that offers one is refused.
  std::string secret = {};
  /// Allows a start without a secret and without a list of served methods although other machines can reach this
  /// worker. Also FERRY_ALLOW_UNAUTHENTICATED=1.
  bool allow_unauthenticated = false;
  /// By worker: on which of its devices tensors of this worker arrive. Results use the inverse map. Without a map for a
  /// worker only CPU tensors can be sent to it. docs/device_maps.md.
  device_map_table device_maps = {};
  /// The devices beside the CPU that this worker's messages may use; empty: those in its maps, and in those of others to it.
  std::vector<device> devices = {};

  /// Adds to the map for `worker`, which need not exist yet. Throws errc::invalid_argument if a device is mapped to
  /// another one already.
  ///
  ///     options.set_device_map("worker1", {{"cuda:0", "cuda:1"}});
  void set_device_map(std::string_view worker, const device_map& map) {
    detail::add_device_map(device_maps, worker, map);
  }
  template <detail::worker_number Id>
  void set_device_map(Id, const device_map&) = delete;  // by name
  /// Replaces `devices`. Throws errc::invalid_argument if the CPU is among them.
  void set_devices(std::initializer_list<device_spec> list) { devices = detail::declared_devices(list); }

  /// Throws errc::invalid_argument, naming the option.
  void check() const;
};

/// worker_config::world_size of a group without a fixed size, whatever WORLD_SIZE says.
inline constexpr int dynamic_world = -1;
/// worker_config::rank in a dynamic group: the lowest free one.
inline constexpr int any_rank = -2;

/// The identity of a worker, how it finds its group, and, flat, the options that every backend understands. Every
/// member has an initialiser, so that compilers do not warn of those that a braced list leaves out.
struct worker_config {
  /// Unique in the group. Empty: "worker<rank>".
  std::string name = {};
  /// 0..world_size-1; -1: from the init method or RANK. any_rank: in a dynamic group the lowest free one.
  int rank = -1;
  /// Number of workers; 0: from the init method or (env://, which needs it) WORLD_SIZE. If that gives none, or with dynamic_world,
  /// the group is dynamic: it has no size, and workers join and leave it at any time.
  int world_size = 0;
  std::string init_method = "env://";
  /// The schemes that init_method may have; unset: env, tcp and file. docs/launching.md#a-store-of-your-own
  store_schemes stores = {};
  timeout rpc_timeout = std::chrono::seconds(60);
  int num_worker_threads = 16;
  int max_blocked_handlers = 1024;
  flow_limits flow = {};
  timeout heartbeat_interval = std::chrono::milliseconds(500);
  timeout lease = std::chrono::seconds(5);
  int flight_events = 1024;
  std::string flight_directory = {};
  std::string record_on_timeout = {};
  int max_observers = 8;
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
  /// If a graceful shutdown ends while other workers still have references to objects of this worker (because one of
  /// them did not answer): true only logs them; false throws errc::reference_leaked after the local shutdown is
  /// complete.
  bool ignore_rref_leaks = true;
  /// Arbitrary bytes that other workers can read (worker::metadata), at most max_metadata.
  std::string metadata = {};
  static constexpr std::size_t max_metadata = std::size_t{64} << 10U;
  /// Restricts what others may call: ferry::serve_list<f, g>. Unset: what ferry::serve<...>() listed in this process
  /// before the worker started, else every method of the program.
  served_methods serve = {};
  /// See the calls that this worker makes and serves, in this order. Their names are unique. docs/interceptors.md.
  std::vector<std::shared_ptr<interceptor>> interceptors = {};

  /// As in rpc_options.
  void set_device_map(std::string_view worker, const device_map& map) {
    detail::add_device_map(device_maps, worker, map);
  }
  template <detail::worker_number Id>
  void set_device_map(Id, const device_map&) = delete;  // by name
  void set_devices(std::initializer_list<device_spec> list) { devices = detail::declared_devices(list); }

  [[nodiscard]] rpc_options options() const;
};

namespace detail {
/// For a worker that is given both: each supplies what the other leaves at its default. Throws errc::invalid_argument
/// naming an option that both set to different values.
void reconcile(worker_config& config, rpc_options& options);
}  // namespace detail

}  // namespace ferry::inline v0

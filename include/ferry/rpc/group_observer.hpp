#pragma once

// Watching a running group without being a member of it. ferry-top is made of this.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/rpc/worker_snapshot.hpp>
#include <ferry/store/store.hpp>
#include <ferry/store/store_schemes.hpp>

namespace ferry::inline v0 {

struct observer_options {
  /// How the workers found each other: env://, tcp://host:port, file://path.
  std::string init_method = "env://";
  store_schemes stores = {};  ///< as in worker_config
  /// That of the group; empty: FERRY_SECRET, else the file FERRY_SECRET_FILE, else none.
  std::string secret = {};
  /// For reaching the store, and for each question to a worker.
  timeout limit = std::chrono::seconds(10);
};

/// A worker as the group's store tells of it.
struct observed_worker {
  worker_info who = {};
  incarnation_id incarnation = {};
  std::string host = {};                    ///< the machine and network namespace that it runs in
  std::vector<std::string> addresses = {};  ///< where it listens
  bool leaving = false;                     ///< it has announced its leave
  std::string lost = {};                    ///< why the group has declared it dead; empty: it has not
};

/// How far the steady clock of a worker's machine is ahead of this process's.
struct observed_clock {
  std::chrono::nanoseconds offset{0};       ///< its clock minus this one
  std::chrono::nanoseconds uncertainty{0};  ///< the offset is right within this, both ways
};

/// Reads the group's store and asks its workers, over connections of its own; is no member, and is counted nowhere.
/// Workers need rpc_options::max_observers for it, and the secret of the group must be known. Thread-safe; each function
/// blocks for observer_options::limit at most.
class group_observer {
 public:
  /// Reaches the store. Throws what rendezvous() throws, errc::unknown_worker if no group has met there.
  explicit group_observer(const observer_options& options);
  /// The same over a store that is open.
  group_observer(std::shared_ptr<store> where, const observer_options& options);
  group_observer(const group_observer&) = delete;
  group_observer& operator=(const group_observer&) = delete;
  ~group_observer();

  /// What all members agree on: "static 4, heartbeats 500 ms, lease 5000 ms".
  [[nodiscard]] std::string kind() const;
  /// By id: those of the store now, and those of earlier calls that have ended since, with the reason in `lost`. While the
  /// store cannot be reached any more: those of the last call.
  [[nodiscard]] std::vector<observed_worker> workers();

  /// What a worker does now; with its last events on request. Throws errc::peer_lost, errc::connect_failed,
  /// errc::authentication_failed, errc::resource_exhausted, errc::rpc_timeout if it does not answer, errc::version_mismatch.
  [[nodiscard]] worker_snapshot snapshot(const observed_worker& of, bool with_events = true);
  /// The best of several round trips. Throws the same.
  [[nodiscard]] observed_clock clock_of(const observed_worker& whom);
  /// Asks anything that workers answer; for parts of ferry. Throws the same, errc::unknown_method if the worker does not
  /// know the question, and what it answers.
  [[nodiscard]] std::string ask(const observed_worker& whom, std::string_view what, std::string_view argument = {});

 private:
  struct state;
  const std::unique_ptr<state> state_;
};

}  // namespace ferry::inline v0

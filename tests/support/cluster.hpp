#pragma once

// Groups of workers for tests, all in this process.
//
//   TEST_CASE("...") {
//     ferry_test::cluster group(2);
//     CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
//   }  // every worker shuts down gracefully
//
// Free functions (ferry::rpc_sync) act on the worker that started last, which may be any; tests use those of the
// workers.

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>

#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace ferry_test {

struct cluster_options {
  /// How the workers find each other: a file in a temporary directory, or rank 0's tcp store.
  enum class meeting : std::uint8_t { file, tcp };
  meeting through = meeting::file;
  /// Changes the configuration of each worker before it starts; name, rank, world_size and init_method are set.
  std::function<void(ferry::worker_config&)> configure = nullptr;
  /// How the workers leave when the cluster is destroyed. Always at once while an exception unwinds the stack.
  bool graceful = true;
  std::chrono::seconds limit = watchdog::usual_limit;
};

/// "worker<rank>"
std::string worker_name(int rank);

/// What came of starting one worker.
struct started {
  ferry::worker worker;
  std::exception_ptr error;  ///< null if it started
};
/// Starts all of them at once, each on a thread of its own, and waits until all have started or failed.
std::vector<started> start_workers(const std::vector<ferry::worker_config>& configs);

/// Runs actions at once, each on a thread of its own; then throws the first exception in their order.
void run_together(const std::vector<std::function<void()>>& actions);

class cluster {
 public:
  /// Throws the first error of a worker that does not start, with nothing left behind.
  explicit cluster(int size, const cluster_options& options = {});
  /// Shuts every worker down that still runs; an error there is a failed check.
  ~cluster();
  cluster(const cluster&) = delete;
  cluster& operator=(const cluster&) = delete;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(workers_.size()); }
  [[nodiscard]] ferry::worker& operator[](int rank) { return workers_.at(static_cast<std::size_t>(rank)); }

  /// Runs `body` for each worker, each on a thread of its own; then throws the first exception by rank.
  void each(const std::function<void(ferry::worker&)>& body);
  /// Every worker at once; throws the first error by rank.
  void shutdown(bool graceful = true, ferry::timeout limit = ferry::no_timeout);

 private:
  temporary_directory directory_;
  watchdog watchdog_;
  bool graceful_;
  int exceptions_;
  bool down_ = false;
  std::vector<ferry::worker> workers_;
};

/// A cluster, `body` on each of its workers at once, and a graceful shutdown.
void run_cluster(int size, const std::function<void(ferry::worker&)>& body, const cluster_options& options = {});

}  // namespace ferry_test

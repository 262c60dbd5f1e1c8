#pragma once

// Workers of one process whose messages a fault injector meets.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/test_kit/faulty.hpp>

#include "cluster.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace dist_test {

class faulty_group {
 public:
  /// `rpc_timeout`: the default of calls, those of the library included.
  faulty_group(int size, std::chrono::nanoseconds rpc_timeout, std::uint64_t seed = 1)
      : faults(seed), workers_(static_cast<std::size_t>(size)) {
    std::vector<std::function<void()>> actions;
    for (int rank = 0; rank < size; ++rank) {
      actions.emplace_back([this, rank, size, rpc_timeout] {
        auto options = ferry::construct_rpc_backend_options<ferry::faulty<ferry::native>>();
        options.faults = faults;
        workers_[static_cast<std::size_t>(rank)] =
            ferry::init_rpc<ferry::faulty<ferry::native>>({.name = ferry_test::worker_name(rank),
                                                           .rank = rank,
                                                           .world_size = size,
                                                           .init_method = "file://" + directory_.file("store"),
                                                           .rpc_timeout = rpc_timeout,
                                                           .init_timeout = std::chrono::seconds(60)},
                                                          options);
      });
    }
    ferry_test::run_together(actions);
  }
  ~faulty_group() {
    faults.clear();
    std::vector<std::function<void()>> actions;
    for (auto& each : workers_) actions.emplace_back([&each] { each.shutdown(); });
    ferry_test::run_together(actions);
  }
  faulty_group(const faulty_group&) = delete;
  faulty_group& operator=(const faulty_group&) = delete;
  [[nodiscard]] ferry::worker& operator[](int rank) { return workers_.at(static_cast<std::size_t>(rank)); }

  ferry::fault_injector faults;

 private:
  ferry_test::watchdog limit_{"a test of passes with faults", ferry_test::watchdog::usual_limit};
  ferry_test::temporary_directory directory_;
  std::vector<ferry::worker> workers_;
};

}  // namespace dist_test

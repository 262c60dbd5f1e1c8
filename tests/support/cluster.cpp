#include "cluster.hpp"

#include <cstdlib>
#include <thread>
#include <utility>

#include <doctest/doctest.h>

#include "ports.hpp"

namespace ferry_test {

std::string worker_name(int rank) { return "worker" + std::to_string(rank); }

void run_together(const std::vector<std::function<void()>>& actions) {
  std::vector<std::exception_ptr> errors(actions.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i != actions.size(); ++i) {
      threads.emplace_back([&errors, &actions, i] {
        try {
          actions[i]();
        } catch (...) {
          errors[i] = std::current_exception();
        }
      });
    }
  }
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

std::vector<started> start_workers(const std::vector<ferry::worker_config>& configs) {
  std::vector<started> results(configs.size());
  std::vector<std::function<void()>> actions;
  for (std::size_t i = 0; i != configs.size(); ++i) {
    actions.emplace_back([&results, &configs, i] {
      try {
        results[i].worker = ferry::init_rpc(configs[i]);
      } catch (...) {
        results[i].error = std::current_exception();
      }
    });
  }
  run_together(actions);
  return results;
}

cluster::cluster(int size, const cluster_options& options)
    : watchdog_("a test with a group of workers", options.limit),
      graceful_(options.graceful),
      exceptions_(std::uncaught_exceptions()) {
  const std::string meeting = options.through == cluster_options::meeting::file
                                  ? "file://" + directory_.file("store")
                                  : "tcp://127.0.0.1:" + std::to_string(free_port());
  std::vector<ferry::worker_config> configs;
  for (int rank = 0; rank != size; ++rank) {
    ferry::worker_config config;
    config.name = worker_name(rank);
    config.rank = rank;
    config.world_size = size;
    config.init_method = meeting;
    // For tests that run once more over another transport.
    if (const char* transport = std::getenv("FERRY_TEST_TRANSPORT")) config.transports = {transport};
    if (options.configure) options.configure(config);
    configs.push_back(std::move(config));
  }
  auto results = start_workers(configs);
  std::exception_ptr error;
  for (started& result : results) {
    if (result.error && !error) error = result.error;
    if (!result.error) workers_.push_back(std::move(result.worker));
  }
  if (!error) return;
  shutdown(false);
  std::rethrow_exception(error);
}

cluster::~cluster() {
  if (down_) return;
  try {
    shutdown(graceful_ && std::uncaught_exceptions() == exceptions_);
  } catch (const std::exception& e) {
    FAIL_CHECK("the workers did not shut down: " << e.what());
  }
}

void cluster::each(const std::function<void(ferry::worker&)>& body) {
  std::vector<std::function<void()>> actions;
  for (ferry::worker& worker : workers_) {
    actions.emplace_back([&body, &worker] { body(worker); });
  }
  run_together(actions);
}

void cluster::shutdown(bool graceful, ferry::timeout limit) {
  down_ = true;
  each([&](ferry::worker& worker) {
    if (worker) worker.shutdown(graceful, limit);
  });
}

void run_cluster(int size, const std::function<void(ferry::worker&)>& body, const cluster_options& options) {
  cluster group(size, options);
  group.each(body);
}

}  // namespace ferry_test

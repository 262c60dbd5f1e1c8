// Groups that fail to form, and groups that follow each other at one place.

#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "ports.hpp"

namespace groups_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::worker_name;

int plus_one(int value) { return value + 1; }

// What each of `ranks` workers says that meets the others `rounds` times in a row. Empty: nothing went wrong.
std::map<std::string, int> meet_again_and_again(const std::string& where, int ranks, int rounds) {
  std::mutex mutex;
  std::map<std::string, int> trouble;
  std::atomic<bool> failed{false};
  std::vector<std::jthread> threads;
  for (int rank = 0; rank != ranks; ++rank) {
    threads.emplace_back([&, rank] {
      for (int round = 0; round != rounds && !failed; ++round) {
        try {
          ferry::worker self = ferry::init_rpc({.name = worker_name(rank),
                                                .rank = rank,
                                                .world_size = ranks,
                                                .init_method = where,
                                                .init_timeout = 20s});
          (void)self.rpc_sync<plus_one>((rank + 1) % ranks, 1);
          self.shutdown(true, 20s);
        } catch (const ferry::error& problem) {
          failed = true;
          std::lock_guard lock(mutex);
          ++trouble["round " + std::to_string(round) + ", rank " + std::to_string(rank) + ": " + problem.what()];
        }
      }
    });
  }
  threads.clear();
  return trouble;
}

TEST_CASE("groups may follow each other at one address at once") {
  ferry_test::watchdog dog("groups that follow each other");
  const auto trouble = meet_again_and_again("tcp://127.0.0.1:" + std::to_string(ferry_test::free_port()), 3, 10);
  CHECK_MESSAGE(trouble.empty(), trouble.begin()->first);
}

TEST_CASE("groups may follow each other in one file at once") {
  ferry_test::watchdog dog("groups that follow each other");
  const ferry_test::temporary_directory directory;
  const auto trouble = meet_again_and_again("file://" + directory.file("store"), 3, 10);
  CHECK_MESSAGE(trouble.empty(), trouble.begin()->first);
}

TEST_CASE("[row 6] two workers of one name: all workers are told, also by the store that the first one serves") {
  for (int round = 0; round != 10; ++round) {
    const auto port = ferry_test::free_port();
    std::vector<ferry::worker_config> configs;
    for (int rank = 0; rank != 3; ++rank) {
      configs.push_back({.name = rank == 0 ? "a" : "b",
                         .rank = rank,
                         .world_size = 3,
                         .init_method = "tcp://127.0.0.1:" + std::to_string(port),
                         .init_timeout = 20s});
    }
    for (const auto& each : ferry_test::start_workers(configs)) {
      REQUIRE(each.error);
      expect_error(errc::duplicate_name, "'b'", [&] { std::rethrow_exception(each.error); });
    }
  }
}

}  // namespace groups_test

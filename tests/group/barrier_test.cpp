#include <ferry/group/barrier.hpp>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"

namespace barrier_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::cluster;
using ferry_test::cluster_options;
using ferry_test::run_cluster;
using ferry_test::worker_name;

// Counts the calls that each worker has received; all workers are in this process.
std::atomic<int> counts[8];
void count() { ++counts[ferry::get_worker_info().id().value]; }
void wait_here() { ferry::barrier({"worker0", "worker1"}, 100s); }

std::vector<std::string> names_of(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  for (const int rank : ranks) names.push_back(worker_name(rank));
  return names;
}

// Every member of `set` calls count() at the first member; after the barrier all of them have.
void count_and_check(ferry::worker& self, const std::vector<int>& set, int round) {
  const int at = set.front();
  self.rpc_sync<count>(at);
  self.barrier(names_of(set));
  CHECK(counts[at] == round * static_cast<int>(set.size()));
  self.barrier(names_of(set));
}

TEST_CASE("[row 136] a barrier over all workers returns only after every worker has called it") {
  for (auto& each : counts) each = 0;
  run_cluster(4, [](ferry::worker& self) {
    for (int round = 1; round != 30; ++round) {
      self.rpc_sync<count>("worker2");
      self.barrier();
      CHECK(counts[2] == 4 * round);
      self.barrier();
    }
  });
}

TEST_CASE("[row 136] barriers over disjoint subsets, and over some of the workers, including single ones") {
  for (auto& each : counts) each = 0;
  run_cluster(5, [](ferry::worker& self) {
    const int rank = self.id().value;
    for (int round = 1; round != 15; ++round) {
      count_and_check(self, rank % 2 == 0 ? std::vector{0, 2, 4} : std::vector{1, 3}, round);
    }
  });
  for (auto& each : counts) each = 0;
  run_cluster(5, [](ferry::worker& self) {
    const int rank = self.id().value;
    for (int round = 1; round != 15; ++round) {
      count_and_check(self, rank % 2 == 0 ? std::vector{0, 2, 4} : std::vector{rank}, round);
    }
  });
}

TEST_CASE("[row 137] barriers by several threads of each worker at once do not hang") {
  for (const int places : {16, 1}) {
    CAPTURE(places);
    run_cluster(4,
                [](ferry::worker& self) {
                  std::vector<std::function<void()>> threads(3, [&] {
                    for (int i = 0; i != 20; ++i) self.barrier(ferry::all_workers, 100s);
                  });
                  ferry_test::run_together(threads);
                },
                {.configure = [places](ferry::worker_config& config) { config.num_worker_threads = places; }});
  }
}

TEST_CASE("free functions act on the current worker") {
  ferry_test::watchdog dog("a barrier of one");
  ferry_test::cluster alone(1);
  ferry::barrier();
  CHECK(ferry::all_gather(3).at("worker0") == 3);
  cluster group(2);
  ferry_test::run_together(
      {[&] { group[0].rpc_sync<wait_here>("worker1"); }, [&] { group[1].rpc_sync<wait_here>("worker0"); }});
}

TEST_CASE("a barrier that fails names the missing workers; all_gather is not matched with a barrier") {
  ferry_test::captured_log log;
  cluster group(3);
  group.each([](ferry::worker& self) { self.barrier(); });
  ferry_test::run_together(
      {[&] { expect_error(errc::rpc_timeout, "missing: worker2", [&] { group[0].barrier(ferry::all_workers, 5s); }); },
       [&] {
         expect_error(errc::rpc_timeout, "barrier of worker0, worker1, worker2",
                      [&] { group[1].barrier(ferry::all_workers, 10s); });
       }});
  expect_error(errc::group_mismatch, "without it", [&] { group[2].barrier(); });
  group.each([](ferry::worker& self) {
    expect_error(errc::group_mismatch, "called barrier()", [&] {
      if (self.id().value == 0) {
        (void)self.all_gather(1);
      } else {
        self.barrier();
      }
    });
    self.barrier();
  });
}

TEST_CASE("[row 134] uneven work, then one or two barriers over all workers, then a shutdown that does not wait") {
  for (const char* transport : {"inproc", "shm", "unix", "tcp"}) {
    for (const int times : {1, 2}) {
      CAPTURE(transport);
      CAPTURE(times);
      for (int again = 0; again != 5; ++again) {
        for (auto& each : counts) each = 0;
        cluster group(4, {.configure = [&](ferry::worker_config& config) { config.transports = {transport}; }});
        group.each([&](ferry::worker& self) {
          if (self.id().value == 1) {
            for (int i = 0; i != 50; ++i) self.rpc_sync<count>(i % 4);
          }
          for (int i = 0; i != times; ++i) self.barrier();
          int all = 0;
          for (const auto& each : counts) all += each;
          CHECK(all == 50);
          self.shutdown(false);
        });
      }
    }
  }
}

}  // namespace barrier_test

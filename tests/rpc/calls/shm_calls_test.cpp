// Calls through shared memory, within a process and between processes.

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>

#include "../worker/process_group.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "noise.hpp"

namespace shm_calls_test {

using ferry::errc;
using ferry_test::cluster;
using rpc_test::process_group;

std::string echo(const std::string& text) { return text; }
ferry::tensor twice(const ferry::tensor& given) { return given + given; }
std::int64_t elements(const std::vector<ferry::tensor>& given) {
  std::int64_t sum = 0;
  for (const ferry::tensor& each : given) sum += each.numel();
  return sum;
}
void block_for_ever() { std::promise<void>().get_future().wait(); }

// What a route does not use, with its reason; empty if it is not among them.
std::string why_not(const ferry::route_info& route, std::string_view transport) {
  for (const auto& each : route.skipped) {
    if (each.name == transport) return each.reason;
  }
  return {};
}

void use(const ferry::worker& self) {
  for (int i = 0; i != 200; ++i) {
    const std::string text(static_cast<std::size_t>(i * 37 % 9000), static_cast<char>('a' + i % 26));
    REQUIRE(self.rpc_sync<echo>("worker1", text) == text);
  }
  for (const std::int64_t size : {0, 1, 1000, 100'000, 3'000'000}) {
    const ferry::tensor given = ferry_test::noise({size});
    CHECK(ferry::equal(self.rpc_sync<twice>("worker1", given), given + given));
  }
  std::vector<ferry::future<ferry::tensor>> results;
  const ferry::tensor given = ferry_test::noise({50'000});
  for (int i = 0; i != 100; ++i) results.push_back(self.rpc_async<twice>("worker1", given));
  for (const auto& each : results) CHECK(ferry::equal(each.get(), given + given));
  std::vector<ferry::tensor> many(1000, ferry_test::noise({7}));
  CHECK(self.rpc_sync<elements>("worker1", many) == 7000);
}

TEST_CASE("an answer arrives although the thread that reads its connection does not come back to it") {
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    process_group all(2, {.transport = transport});
    // So many that threads wait for the connection themselves by then.
    for (int round = 0; round != 20; ++round) {
      std::atomic<int> arrived{0};
      std::vector<ferry::future<void>> over;
      for (int i = 0; i != 30; ++i) {
        over.push_back(all.self.rpc_async<echo>("worker1", std::string("first")).then([&](const auto& first) {
          CHECK(first.get() == "first");
          // On some of these threads a call reads the connection itself, which is then watched less closely.
          if (round % 2 == 0) CHECK(all.self.rpc_sync<echo>("worker1", std::string("between")) == "between");
          const auto second = all.self.rpc_async<echo>("worker1", std::string("second"));
          const ferry_test::watchdog limit("an answer to a thread that computes");
          while (!second.ready()) std::this_thread::yield();
          arrived.fetch_add(1);
        }));
      }
      for (const auto& each : over) each.get();
      CHECK(arrived.load() == 30);
    }
    all.leave();
  }
}

TEST_CASE("processes of a machine call each other through shared memory") {
  process_group all(2);
  use(all.self);
  const auto route = all.self.route("worker1");
  CHECK(route.transport == "shm");
  CHECK_FALSE(why_not(route, "inproc").empty());
  REQUIRE_FALSE(route.devices.empty());
  // A process that has had memory of the shared allocator lends it.
  const ferry::shared_memory_stats memory = ferry::shared_allocator().stats();
  const bool lends = memory.blocks != 0 || memory.cached_bytes != 0;
  CHECK((route.devices[0].channel == "inline" || (lends && route.devices[0].channel == "shm")));
  all.leave();
}

TEST_CASE("answers for continuations come beside a thread that calls again and again, and when it stops") {
  for (const char* transport : {"shm", "tcp"}) {
    CAPTURE(transport);
    process_group all(2, {.transport = transport});
    for (int round = 0; round != 400; ++round) {
      const auto come = std::make_shared<std::binary_semaphore>(0);
      all.self.rpc_async<echo>("worker1", std::string(100, 'x'))
          .add_done_callback([come](const ferry::future<std::string>&) { come->release(); });
      for (int i = 0; i != round % 40; ++i) REQUIRE(all.self.rpc_sync<echo>("worker1", "y") == "y");
      come->acquire();
    }
    all.leave();
  }
}

TEST_CASE("calls pass rings that are smaller than their messages") {
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  config.transports = {"shm"};
                  config.transport.shm_ring_bytes = 4096;
                }});
  use(group[0]);
}

TEST_CASE("a size that no ring can have is refused when the worker starts") {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{1000}, std::size_t{100'000}}) {
    expect_error(errc::invalid_argument, "shm_ring_bytes", [&] {
      ferry::worker_config config;
      config.transport.shm_ring_bytes = bytes;
      (void)config.options();
    });
  }
}

TEST_CASE("a worker without shared memory is reached over a socket, and the route says why") {
  std::atomic<int> started{0};
  cluster group(2, {.configure = [&](ferry::worker_config& config) {
                  if (started++ == 0) {
                    config.transports = {"shm", "unix", "tcp"};
                  } else {
                    config.transports = {"unix", "tcp"};
                  }
                }});
  for (const int rank : {0, 1}) {
    const std::string other = "worker" + std::to_string(1 - rank);
    CHECK(group[rank].rpc_sync<echo>(other, "text") == "text");
    const auto route = group[rank].route(other);
    CHECK(route.transport == "unix");
    if (group[rank].route(other).skipped.empty()) continue;  // the one without
    CHECK(why_not(route, "shm") == "the peer has no address for it");
  }
}

TEST_CASE("calls to a process that is killed end, whether their caller spins or sleeps") {
  for (int round = 0; round != 6; ++round) {
    CAPTURE(round);
    process_group all(2, {.transport = "shm"});
    REQUIRE(all.self.rpc_sync<echo>("worker1", "text") == "text");
    REQUIRE(all.self.route("worker1").transport == "shm");
    if (round % 2 == 0) {
      const auto blocked = all.self.rpc_async<block_for_ever>("worker1");
      std::thread killer([&] { all.child(1).kill(); });
      expect_error(errc::peer_lost, "worker1", [&] { blocked.get(); });
      killer.join();
    } else {
      std::atomic<int> calls{0};
      std::thread killer([&] {
        while (calls.load() < 200 * round) std::this_thread::yield();
        all.child(1).kill();
      });
      const ferry::tensor given = ferry_test::noise({20'000});
      expect_error(errc::peer_lost, "worker1", [&] {
        for (;; ++calls) (void)all.self.rpc_sync<twice>("worker1", given);
      });
      killer.join();
    }
  }
}

}  // namespace shm_calls_test

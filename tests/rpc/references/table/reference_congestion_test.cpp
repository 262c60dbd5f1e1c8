// Reference controls overtake user calls, even while these are at their flow limit.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace reference_congestion_test {

using ferry::rref;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
ferry_test::gate other_door;

int stop_at_door(int value) {
  door.pass();
  return value;
}
// Its handler begins once the owner has confirmed the callee as a holder.
bool look_at(const rref<counter>& which) { return which.confirmed_by_owner(); }
bool pass_to_worker0(const rref<counter>& which) { return ferry::rpc_sync<look_at>("worker0", which); }
// Sends a reference to an object of its own to worker0 through worker2.
bool send_around(int value) {
  other_door.pass();
  return ferry::rpc_sync<pass_to_worker0>("worker2", rref<counter>(value));
}

// Opens the doors at the end of the test at the latest: a handler that waits at one would block its worker's shutdown.
struct closed_doors {
  closed_doors() {
    door.reset();
    other_door.reset();
  }
  ~closed_doors() {
    door.open();
    other_door.open();
  }
  closed_doors(const closed_doors&) = delete;
  closed_doors& operator=(const closed_doors&) = delete;
};

// worker0 has `calls` calls at worker1, which exhaust the limits of `flow` in one direction.
void check_passing(const ferry::flow_limits& flow, int calls, const std::string& transport,
                   const std::function<void(cluster&)>& congested) {
  const closed_doors doors;
  cluster group(3, {.configure = [&](ferry::worker_config& config) {
                  config.flow = flow;
                  config.num_worker_threads = 32;
                  config.rpc_timeout = 30s;
                  if (!transport.empty()) config.transports = {transport};
                }});
  const auto around = group[0].rpc_async<send_around>("worker1", 5);
  other_door.await_arrivals(1);
  std::vector<ferry::future<int>> others;
  for (int i = 0; i != calls; ++i) others.push_back(group[0].rpc_async<stop_at_door>("worker1", i));
  congested(group);
  other_door.open();
  CHECK(around.get());
  CHECK(door.arrived() <= calls);
  door.open();
  for (int i = 0; i != calls; ++i) CHECK(others[static_cast<std::size_t>(i)].get() == i);
}

TEST_CASE("a holder is confirmed while the calls to the owner are at their limit") {
  ferry::flow_limits flow;
  flow.calls_per_peer = 4;
  for (const std::string transport : {"", "unix"}) {
    CAPTURE(transport);
    check_passing(flow, 6, transport, [](cluster&) { door.await_arrivals(3); });
  }
}

TEST_CASE("a holder is confirmed while the owner has paused reading its calls") {
  ferry::flow_limits flow;
  flow.served_calls_per_peer = 3;
  for (const std::string transport : {"", "unix"}) {
    CAPTURE(transport);
    check_passing(flow, 20, transport, [](cluster& group) { await_figure(group[1], "agent.paused_connections", "1"); });
  }
}

}  // namespace reference_congestion_test

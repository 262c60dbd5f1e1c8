// Calls between processes whose threads spin instead of sleeping.

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>

#include "../worker/process_group.hpp"
#include "expect_error.hpp"
#include "noise.hpp"

namespace busy_poll_test {

using ferry::errc;
using rpc_test::process_group;

int increased(int value) { return value + 1; }
void wait_for_ever() { std::promise<void>().get_future().wait(); }
ferry::tensor twice(const ferry::tensor& given) { return given + given; }
std::string echo(std::string text) { return text; }
int call_back(int rounds) {
  int value = 0;
  for (int i = 0; i != rounds; ++i) value = ferry::rpc_sync<increased>("worker0", value);
  return value;
}

TEST_CASE("with busy polling calls go both ways, from many threads, and with tensors") {
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    process_group all(3, {.transport = transport, .busy_poll = 1});  // one thread polls, for two callers
    for (int i = 0; i != 100; ++i) CHECK(all.self.rpc_sync<increased>(i % 2 == 0 ? "worker1" : "worker2", i) == i + 1);
    std::vector<std::thread> callers;
    std::atomic<int> right{0};
    for (int each = 0; each != 4; ++each) {
      callers.emplace_back([&, to = each % 2 == 0 ? "worker1" : "worker2"] {
        for (int i = 0; i != 50; ++i) right += all.self.rpc_sync<increased>(to, i) == i + 1 ? 1 : 0;
        right += all.self.rpc_sync<call_back>(to, 50) == 50 ? 1 : 0;
      });
    }
    for (std::thread& each : callers) each.join();
    CHECK(right == 204);
    const ferry::tensor given = ferry_test::noise({300'000});
    CHECK(ferry::equal(all.self.rpc_sync<twice>("worker1", given), given + given));
    std::vector<ferry::future<int>> under_way;
    for (int i = 0; i != 200; ++i) under_way.push_back(all.self.rpc_async<increased>("worker2", i));
    for (int i = 0; i != 200; ++i) CHECK(under_way[static_cast<std::size_t>(i)].get() == i + 1);
    all.leave();
  }
}

TEST_CASE("a thread that polls finds room for its writer, again and again") {
  process_group all(2, {.transport = "shm", .max_spin = std::chrono::microseconds(0), .busy_poll = 1});
  const std::string text(std::size_t{24} << 20U, 'x');
  for (int i = 0; i != 4; ++i) CHECK(all.self.rpc_sync<echo>("worker1", text) == text);
  all.leave();
}

TEST_CASE("a thread that polls notices the end of its peer, a limit, and a stop") {
  for (const char* transport : {"shm", "unix"}) {
    CAPTURE(transport);
    process_group all(3, {.transport = transport, .busy_poll = 2});
    CHECK(all.self.rpc_sync<call_back>("worker1", 10) == 10);  // a thread of this process polls for worker1
    CHECK(all.self.rpc_sync<call_back>("worker2", 10) == 10);
    using std::chrono::milliseconds;
    expect_error(errc::rpc_timeout, "",
                 [&] { all.self.rpc_sync<wait_for_ever>(ferry::to("worker1", {.timeout = milliseconds(20)})); });
    std::stop_source stop;
    auto stopped = std::async(std::launch::async, [&] {
      all.self.rpc_sync<wait_for_ever>(ferry::to("worker1", {.timeout = ferry::no_timeout, .stop = stop.get_token()}));
    });
    while (all.self.pending_calls().empty()) std::this_thread::yield();
    stop.request_stop();
    expect_error(errc::call_cancelled, "", [&] { stopped.get(); });
    auto lost = std::async(std::launch::async, [&] {
      all.self.rpc_sync<wait_for_ever>(ferry::to("worker1", {.timeout = ferry::no_timeout}));
    });
    while (all.self.pending_calls().empty()) std::this_thread::yield();
    const auto killed = std::chrono::steady_clock::now();
    all.child(1).kill(SIGKILL);
    CHECK_THROWS_AS(lost.get(), ferry::error);
    CHECK(std::chrono::steady_clock::now() - killed < std::chrono::seconds(50));  // half of the lease
    CHECK(all.self.rpc_sync<increased>("worker2", 1) == 2);
    std::promise<void> gone;
    all.self.on_peer_lost([&](const ferry::worker_info& peer, const std::string&) {
      if (peer.name() == "worker2") gone.set_value();
    });
    all.child(2).kill(SIGKILL);  // no call waits for it
    gone.get_future().wait();
    all.self.shutdown(false);
  }
}

TEST_CASE("busy_poll must not be negative") {
  ferry::worker_config config{.name = "worker0", .rank = 0, .world_size = 1, .init_method = "file:///nowhere"};
  config.transport.busy_poll = -1;
  expect_error(errc::invalid_argument, "transport.busy_poll must not be negative",
               [&] { (void)ferry::init_rpc(config); });
}

}  // namespace busy_poll_test

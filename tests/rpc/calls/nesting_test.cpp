// Handlers that call: to any depth, with one running handler, and the bounds on how many run and wait.

#include <atomic>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace nesting_test {

using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::cluster_options;

int add(int a, int b) { return a + b; }

// Each level blocks in a call to the next worker of the ring.
int descend(int depth) {
  if (depth == 0) return 0;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  return 1 + ferry::rpc_sync<descend>((ferry::get_worker_info().id().value + 1) % size, depth - 1);
}
int descend_by_future(int depth) {
  if (depth == 0) return 0;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  auto next = ferry::rpc_async<descend_by_future>((ferry::get_worker_info().id().value + 1) % size, depth - 1);
  return 1 + next.get();
}
// Two calls at each level: 2^depth leaves.
int branch(int depth) {
  if (depth == 0) return 1;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  const int next = (ferry::get_worker_info().id().value + 1) % size;
  auto left = ferry::rpc_async<branch>(next, depth - 1);
  const int right = ferry::rpc_sync<branch>(next, depth - 1);
  return left.get() + right;
}
std::string bounce(std::string trail, int hops) {
  trail += std::to_string(ferry::get_worker_info().id().value);
  return hops == 0 ? trail : ferry::rpc_sync<bounce>(ferry::this_call().caller(), trail, hops - 1);
}
std::string current_worker_name() { return ferry::get_worker_info().name(); }
std::string own_name_after_nested_call(const std::string& other) {
  (void)ferry::rpc_sync<current_worker_name>(other);
  return ferry::get_worker_info().name();
}

// Blocks for the result of an asynchronous call, in the ways of row 58.
int callback_in_handler(const std::string& to, int x) {
  ferry::promise<int> outer;
  auto result = outer.get_future();
  ferry::rpc_async<add>(to, x, 1).add_done_callback([&outer](int sum) { outer.set_value(sum + 1); });
  return result.get();
}
int future_in_handler(const std::string& to, int x) { return ferry::rpc_async<add>(to, x, 1).get() + 1; }
int nested_call_in_callback(const std::string& to, int x) {
  return ferry::rpc_async<add>(to, x, 1).then([to](int sum) { return ferry::rpc_sync<add>(to, sum, 1); }).get();
}
int nested_future_in_callback(const std::string& to, int x) {
  return ferry::rpc_async<add>(to, x, 1).then([to](int sum) { return ferry::rpc_async<add>(to, sum, 1); }).get();
}

ferry_test::gate crowd;
int run_in_crowd() {
  crowd.pass();
  return 1;
}
// Waits in the library, so it gives its place away.
ferry_test::gate back_office;
int held_up() {
  back_office.pass();
  return 1;
}
ferry_test::gate waiters;
int wait_for_other(int other) {
  waiters.arrive();
  return ferry::rpc_sync<held_up>(other);
}
std::atomic<int> inside{0};
std::atomic<int> most{0};
// Several short runs with waits between them: at no moment may more run than the limit says.
int run_and_wait(int other, int rounds) {
  for (int i = 0; i != rounds; ++i) {
    const int now = inside.fetch_add(1) + 1;
    int seen = most.load();
    while (seen < now && !most.compare_exchange_weak(seen, now)) {
    }
    std::this_thread::yield();
    inside.fetch_sub(1);
    (void)ferry::rpc_sync<add>(other, i, 1);
  }
  return rounds;
}

namespace {
cluster_options with_threads(int threads, int blocked = 1024) {
  return {.configure = [=](ferry::worker_config& config) {
    config.num_worker_threads = threads;
    config.max_blocked_handlers = blocked;
  }};
}
}  // namespace

TEST_CASE("[row 58] a handler makes asynchronous calls with continuations and blocks for the result") {
  for (const int threads : {1, 16}) {
    CAPTURE(threads);
    cluster group(3, with_threads(threads));
    for (const char* to : {"worker2", "worker1", "worker0"}) {
      CAPTURE(to);
      CHECK(group[0].rpc_sync<callback_in_handler>("worker1", to, 1) == 3);
      CHECK(group[0].rpc_sync<future_in_handler>("worker1", to, 1) == 3);
      CHECK(group[0].rpc_sync<nested_call_in_callback>("worker1", to, 1) == 3);
      CHECK(group[0].rpc_async<nested_future_in_callback>("worker1", to, 1).get() == 3);
    }
  }
}

TEST_CASE("nesting to depth 50 among workers that run one handler each") {
  for (const int size : {1, 2, 3}) {
    CAPTURE(size);
    cluster group(size, with_threads(1));
    CHECK(group[0].rpc_sync<descend>("worker0", 50) == 50);
    CHECK(group[0].rpc_async<descend_by_future>("worker0", 50).get() == 50);
  }
}

TEST_CASE("nesting that branches, from every worker at once, with one running handler each") {
  cluster group(3, with_threads(1));
  group.each([](ferry::worker& self) {
    if (self.rpc_sync<branch>(self.id(), 6) != 64) throw std::runtime_error("wrong number of leaves");
  });
}

TEST_CASE("A calls B, which calls A, and so on") {
  cluster group(2, with_threads(1));
  CHECK(group[0].rpc_sync<bounce>("worker1", "", 5) == "101010");
  CHECK(group[1].rpc_async<bounce>("worker0", "", 1).get() == "01");
}

TEST_CASE("in a handler the free functions act on the worker that is called, also after a nested call") {
  cluster group(3);
  for (int rank = 0; rank != 3; ++rank) {
    CHECK(group[0].rpc_sync<own_name_after_nested_call>(rank, "worker0") == ferry_test::worker_name(rank));
  }
}

TEST_CASE("no more handlers run at once than num_worker_threads says") {
  cluster group(2, with_threads(3));
  crowd.reset();
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 12; ++i) calls.push_back(group[0].rpc_async<run_in_crowd>("worker1"));
  crowd.await_arrivals(3);
  // The other worker has places of its own.
  CHECK(group[1].rpc_sync<add>("worker0", 1, 1) == 2);
  CHECK(crowd.arrived() == 3);
  crowd.open();
  CHECK(ferry::wait_all(std::move(calls)).size() == 12);
  CHECK(crowd.arrived() == 12);
  CHECK(crowd.most_inside() == 3);
}

TEST_CASE("a handler that waits gives its place to another, and takes one again when its wait is over") {
  cluster group(2, with_threads(2));
  inside = 0;
  most = 0;
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 20; ++i) calls.push_back(group[0].rpc_async<run_and_wait>("worker1", 0, 20));
  CHECK(ferry::wait_all(std::move(calls)).size() == 20);
  CHECK(most <= 2);
}

TEST_CASE("handlers that wait beyond the stated number are an error, and the worker recovers") {
  captured_log log;
  cluster group(3, with_threads(2, 4));
  waiters.reset();
  back_office.reset();
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 4; ++i) calls.push_back(group[0].rpc_async<wait_for_other>("worker1", 2));
  waiters.await_arrivals(4);
  back_office.await_arrivals(2);  // as many as worker2 runs at once
  // Those that come now find no place to wait. Perhaps one of the four was not waiting yet: then one of these is.
  std::vector<ferry::future<int>> refused;
  for (int i = 0; i != 6; ++i) refused.push_back(group[0].rpc_async<wait_for_other>("worker1", 2));
  int exhausted = 0;
  const auto first = ferry::when_any(refused).get();
  try {
    (void)first.first.get();
    FAIL_CHECK("it was not refused");
  } catch (const ferry::resource_exhausted& e) {
    CHECK(std::string(e.what()).find("max_blocked_handlers") != std::string::npos);
  }
  // Handlers that do not wait are served meanwhile.
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
  back_office.open();
  int finished = 0;
  for (auto* list : {&calls, &refused}) {
    for (auto& each : *list) {
      try {
        finished += each.get();
      } catch (const ferry::resource_exhausted&) {
        ++exhausted;
      }
    }
  }
  CHECK(finished + exhausted == 10);
  CHECK(exhausted >= 1);
  CHECK(finished >= 4);
  CHECK(group[0].rpc_sync<wait_for_other>("worker1", 2) == 1);
}

}  // namespace nesting_test

// How workers leave.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace shutdown_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::captured_log;
using ferry_test::cluster;

int plus_one(int value) { return value + 1; }
ferry_test::gate door;
int slow(int value) {
  door.pass();
  return value;
}

std::atomic<int> hops{0};
// One-way calls from worker to worker.
void hop(int left) {
  ++hops;
  if (left == 0) return;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  ferry::notify<hop>((ferry::get_worker_info().id().value + 1) % size, left - 1);
}
// The same with asynchronous calls whose futures are dropped, made in continuations.
void hop_by_continuation(int left) {
  ++hops;
  if (left == 0) return;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  const int next = (ferry::get_worker_info().id().value + 1) % size;
  ferry::rpc_async<plus_one>(next, 0).add_done_callback(
      [next, left](int) { (void)ferry::rpc_async<hop_by_continuation>(next, left - 1); });
}
ferry::task<void> hop_by_coroutine(int left) {
  ++hops;
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  const int next = (ferry::get_worker_info().id().value + 1) % size;
  co_await ferry::rpc_async<plus_one>(next, 0);
  if (left != 0) ferry::notify<hop_by_coroutine>(next, left - 1);
}
ferry::worker* doomed = nullptr;
ferry_test::gate gone;
void drop_the_last_handle() {
  { const ferry::worker last = std::move(*doomed); }
  gone.arrive();
}
// Work that begins when all other workers are leaving already.
int work_late(const std::string& to) {
  door.pass();
  return ferry::rpc_sync<plus_one>(to, 1) + ferry::rpc_async<plus_one>(to, 1).get();
}

TEST_CASE("[row 140] after its shutdown a worker makes no calls and answers no questions about the group") {
  cluster group(2);
  CHECK(ferry::is_initialized());
  group.shutdown();
  CHECK_FALSE(ferry::is_initialized());
  expect_error(errc::not_initialized, "worker0", [&] { (void)group[0].rpc_sync<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "init_rpc", [&] { (void)group[0].rpc_async<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { group[0].notify<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { (void)group[0].workers(); });
  expect_error(errc::not_initialized, "", [&] { (void)group[0].get_worker_info("worker1"); });
  expect_error(errc::not_initialized, "init_rpc", [&] { (void)ferry::rpc_sync<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { (void)ferry::rpc_async<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { ferry::notify<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { (void)ferry::get_worker_info(); });
  expect_error(errc::not_initialized, "", [&] { (void)ferry::get_worker_infos(); });
  expect_error(errc::not_initialized, "", [&] { ferry::shutdown(); });
  CHECK_NOTHROW(group[0].shutdown());
  CHECK_NOTHROW(group[0].shutdown(false));
}

TEST_CASE("before the first init, and on an empty handle, everything says not initialised") {
  ferry::worker none;
  CHECK_FALSE(none);
  expect_error(errc::not_initialized, "", [&] { (void)none.rpc_sync<plus_one>("worker1", 1); });
  expect_error(errc::not_initialized, "", [&] { (void)none.info(); });
  CHECK_FALSE(ferry::is_initialized());
  cluster group(1);
  ferry::worker moved = std::move(group[0]);
  CHECK(moved.rpc_sync<plus_one>("worker0", 1) == 2);
  group[0] = std::move(moved);
  CHECK(group[0].rpc_sync<plus_one>("worker0", 1) == 2);
}

TEST_CASE("[row 138] graceful shutdown waits for the late work of others") {
  cluster group(3);
  door.reset();
  std::vector<ferry::future<int>> late;
  for (int i = 0; i != 30; ++i) late.push_back(group[0].rpc_async<work_late>("worker1", "worker2"));
  ferry_test::gate leaving;
  std::vector<std::jthread> threads;
  for (int rank = 1; rank != 3; ++rank) {
    threads.emplace_back([&group, &leaving, rank] {
      leaving.arrive();
      group[rank].shutdown();
    });
  }
  leaving.await_arrivals(2);
  door.open();
  // The others are leaving but serve on, as long as this worker has not called shutdown.
  CHECK(group[0].rpc_sync<plus_one>("worker2", 1) == 2);
  CHECK(group[0].rpc_sync<work_late>("worker2", "worker1") == 4);
  group[0].shutdown();
  for (auto& each : late) CHECK(each.get() == 4);
}

TEST_CASE("graceful shutdown waits for asynchronous calls whose futures were dropped") {
  door.reset();
  cluster group(2);
  const auto pending = group[0].rpc_async<slow>("worker1", 5);
  std::jthread opener([] {
    door.await_arrivals(1);
    door.open();
  });
  group.shutdown();
  CHECK(pending.ready());
  CHECK(pending.get() == 5);
}

TEST_CASE("chains of one-way calls are finished before any worker leaves") {
  for (int round = 0; round != 3; ++round) {
    hops = 0;
    {
      cluster group(3);
      group.each([](ferry::worker& self) { self.notify<hop>((self.id().value + 1) % 3, 20); });
    }
    CHECK(hops == 3 * 21);
    hops = 0;
    {
      cluster group(3);
      group.each([](ferry::worker& self) { (void)self.rpc_async<hop_by_continuation>((self.id().value + 1) % 3, 20); });
    }
    CHECK(hops == 3 * 21);
    hops = 0;
    {
      cluster group(3);
      group.each([](ferry::worker& self) { self.notify<hop_by_coroutine>((self.id().value + 1) % 3, 20); });
    }
    CHECK(hops == 3 * 21);
  }
}

TEST_CASE("[row 133] graceful shutdown with a deadline names the missing workers, and leaves all the same") {
  cluster group(3, {.graceful = false});
  const auto before = ferry::clock::now();
  expect_error(errc::shutdown_timeout, "worker_info(id=2, name=worker2)", [&] {
    std::jthread other([&] {
      try {
        group[1].shutdown(true, 100ms);
      } catch (const ferry::error& e) {
        CHECK(e.kind() == errc::shutdown_timeout);
      }
    });
    group[0].shutdown(true, 100ms);
  });
  CHECK(ferry::clock::now() - before >= 100ms);
  expect_error(errc::not_initialized, "", [&] { (void)group[0].rpc_sync<plus_one>("worker2", 1); });
  CHECK(group[2].rpc_sync<plus_one>("worker2", 1) == 2);
}

TEST_CASE("a graceful shutdown ends although those that would sum it up leave without the others, one by one") {
  captured_log log;
  cluster group(5, {.graceful = false});
  std::vector<std::jthread> others;
  for (const int rank : {2, 3, 4}) others.emplace_back([&, rank] { CHECK_NOTHROW(group[rank].shutdown(true, 60s)); });
  group[0].shutdown(false);
  group[1].shutdown(false);
}

TEST_CASE("graceful shutdown with a deadline says that it is a handler which runs on") {
  captured_log log;
  door.reset();
  cluster group(2, {.graceful = false});
  const auto pending = group[0].rpc_async<slow>("worker1", 1);
  door.await_arrivals(1);
  expect_error(errc::shutdown_timeout, "worker1): at the deadline of the shutdown it runs handlers", [&] {
    std::jthread opener([&] {
      CHECK_THROWS_AS((void)pending.get(), ferry::error);
      door.open();
    });
    group[1].shutdown(true, 50ms);
  });
}

TEST_CASE("graceful shutdown with a deadline ends although a handler runs on") {
  captured_log log;
  door.reset();
  cluster group(2, {.graceful = false});
  const auto pending = group[0].rpc_async<slow>("worker1", 1);
  door.await_arrivals(1);
  expect_error(errc::shutdown_timeout, "worker0): at the deadline of the shutdown 1 of its calls is pending", [&] {
    std::jthread opener([&] {
      CHECK_THROWS_AS((void)pending.get(), ferry::error);
      door.open();
    });
    group[0].shutdown(true, 50ms);
  });
  CHECK_THROWS_AS((void)pending.get(), ferry::error);
}

TEST_CASE("[row 141] shutdown at once: without any call, and after calls") {
  SUBCASE("without") { cluster group(3, {.graceful = false}); }
  SUBCASE("after calls") {
    cluster group(3, {.graceful = false});
    group.each([](ferry::worker& self) {
      if (self.rpc_sync<plus_one>((self.id().value + 1) % 3, 1) != 2) throw std::runtime_error("wrong result");
    });
  }
}

TEST_CASE("shutdown at once ends this worker's calls and those of the others to it; the rest go on") {
  captured_log log;
  door.reset();
  cluster group(3, {.graceful = false});
  const auto own = group[1].rpc_async<slow>({"worker2", {.timeout = ferry::no_timeout}}, 1);
  const auto of_other = group[0].rpc_async<slow>({"worker1", {.timeout = ferry::no_timeout}}, 2);
  const auto unconcerned = group[0].rpc_async<slow>({"worker2", {.timeout = ferry::no_timeout}}, 3);
  door.await_arrivals(3);
  {
    std::jthread opener([&] {
      expect_error(errc::peer_lost, "worker1", [&] { (void)of_other.get(); });
      expect_error(errc::shutting_down, "worker1", [&] { (void)own.get(); });
      door.open();
    });
    group[1].shutdown(false);
  }
  CHECK(unconcerned.get() == 3);
  CHECK(group[0].rpc_sync<plus_one>("worker2", 1) == 2);
  CHECK_THROWS_AS((void)group[0].rpc_sync<plus_one>("worker1", 1), ferry::error);
  CHECK_THROWS_AS((void)group[0].rpc_async<plus_one>("worker1", 1).get(), ferry::error);
}

TEST_CASE("the destructor of a worker shuts down gracefully, bounded by exit_timeout") {
  captured_log log;
  hops = 0;
  {
    cluster group(2);
    std::vector<ferry::worker> workers;
    for (int rank = 0; rank != 2; ++rank) workers.push_back(std::move(group[rank]));
    workers[0].notify<hop>(1, 10);
    std::jthread other([last = std::move(workers[1])]() mutable { const ferry::worker gone = std::move(last); });
    { const ferry::worker gone = std::move(workers[0]); }
    other.join();
    group[0] = {};
    group[1] = {};
  }
  CHECK(hops == 11);
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.exit_timeout = 1s; }, .graceful = false});
  { const ferry::worker gone = std::move(group[0]); }
  CHECK(log.has("worker0", "was not shut down together with its group"));
  CHECK(log.has("worker0", "worker1"));
}

TEST_CASE("threads that call while their worker shuts down end with an error of their own") {
  captured_log log;
  for (int round = 0; round != 5; ++round) {
    cluster group(2, {.graceful = false});
    std::atomic<int> calls{0};
    ferry_test::gate begun;
    std::vector<std::function<void()>> actions;
    for (int i = 0; i != 4; ++i) {
      actions.emplace_back([&, i] {
        ferry::worker& self = group[i % 2];
        try {
          for (;;) {
            if (self.rpc_sync<plus_one>(1 - self.id().value, 1) != 2) throw std::logic_error("wrong result");
            if (++calls == 20) begun.arrive();
          }
        } catch (const ferry::error& e) {
          const errc kind = e.kind();
          if (kind != errc::not_initialized && kind != errc::shutting_down && kind != errc::peer_lost &&
              kind != errc::connect_failed && kind != errc::handshake_failed) {
            throw;
          }
        }
      });
    }
    actions.emplace_back([&] {
      begun.await_arrivals(1);
      group[0].shutdown(false);
      group[1].shutdown(false);
    });
    ferry_test::run_together(actions);
  }
}

TEST_CASE("a second shutdown on another thread returns once the worker is shut down") {
  cluster group(2);
  std::thread first([&] { group[0].shutdown(); });
  std::thread second([&] { group[0].shutdown(); });
  group[1].shutdown();
  first.join();
  second.join();
  expect_error(errc::not_initialized, "shut down", [&] { group[0].rpc_sync<plus_one>("worker1", 1); });
}

TEST_CASE("a graceful shutdown that waits for another worker is ended by one that is not graceful") {
  cluster group(3, {.graceful = false});
  std::thread waiting([&] {
    try {
      group[0].shutdown();  // no error if the other one was first
    } catch (const ferry::error& problem) {
      CHECK((problem.kind() == errc::shutting_down || problem.kind() == errc::store_failed));
    }
  });
  group[1].shutdown(false);
  group[0].shutdown(false);
  waiting.join();
  expect_error(errc::not_initialized, "shut down", [&] { group[0].rpc_sync<plus_one>("worker1", 1); });
}

TEST_CASE("a worker whose last handle goes in one of its own handlers leaves at once") {
  captured_log log;
  cluster group(2, {.graceful = false});
  ferry::worker last = std::move(group[1]);
  doomed = &last;
  group[0].notify<drop_the_last_handle>("worker1");
  gone.await_arrivals(1);
  const auto until = ferry::clock::now() + ferry_test::gate::limit;
  bool served = true;
  while (served && ferry::clock::now() < until) {
    try {
      group[0].rpc_sync<plus_one>({"worker1", {.timeout = 5s}}, 1);
    } catch (const ferry::error&) {
      served = false;
    }
  }
  CHECK_FALSE(served);
}

}  // namespace shutdown_test

// Which calls hang, and where: what a worker shows of its calls, its requests and its traffic.

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace debug_test {

using namespace std::chrono_literals;
using ferry::call_phase;
using ferry::errc;
using ferry::served_phase;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::gate;
using rpc_test::process_group;

gate hold;
ferry::promise<int>* answer = nullptr;

int plus_one(int value) { return value + 1; }
void fail() { throw std::runtime_error("no"); }
int wait_at_gate(const std::vector<std::byte>&) {
  hold.pass();
  return 7;
}
void wait_at_gate_one_way() { hold.pass(); }
int call_on(const std::string& name) { return ferry::rpc_sync<wait_at_gate>(name, std::vector<std::byte>{}); }
ferry::future<int> answer_later() {
  hold.arrive();
  return answer->get_future();
}
ferry::tensor zeros(std::int64_t count) { return ferry::zeros({count}); }
int block_in_child() {
  ferry_test::tell_parent("blocked");
  (void)ferry_test::ask_parent();
  return 1;
}

const ferry_test::role stuck("member that gets stuck", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc({.name = "worker1",
                                        .rank = 1,
                                        .world_size = 2,
                                        .init_method = arguments.at(0),
                                        .rpc_timeout = 100s,
                                        .lease = std::chrono::milliseconds(std::stoll(arguments.at(4)))});
  ferry_test::tell_parent("joined");
  self.shutdown();
  return 0;
});

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Of the one call that is there, or will be.
template <class Call>
Call the_only(const std::function<std::vector<Call>()>& look) {
  const auto calls = look();
  REQUIRE(calls.size() == 1);
  return calls.front();
}
ferry::pending_call_info only_pending(const ferry::worker& who) {
  return the_only<ferry::pending_call_info>([&] { return who.pending_calls(); });
}
ferry::served_call_info only_served(const ferry::worker& who) {
  return the_only<ferry::served_call_info>([&] { return who.served_calls(); });
}
ferry::served_call_info served_once(const ferry::worker& who, const std::string& method, served_phase phase) {
  for (;;) {
    for (const auto& each : who.served_calls()) {
      if (contains(each.method, method) && each.phase == phase) return each;
    }
    std::this_thread::yield();
  }
}

}  // namespace

TEST_CASE(
    "a pending call shows its method, peer, phase, age, size, deadline and route; a served one the same at its end") {
  hold.reset();
  cluster group(2);
  CHECK(group[0].pending_calls().empty());
  CHECK(group[1].served_calls().empty());
  const auto before = ferry::clock::now();
  const auto result =
      group[0].rpc_async<wait_at_gate>({"worker1", {.timeout = 50s}}, std::vector<std::byte>(1000, std::byte{1}));
  hold.await_arrivals(1);

  const auto pending = only_pending(group[0]);
  CHECK(contains(pending.method, "debug_test::wait_at_gate"));
  CHECK(pending.peer == group[1].info());
  CHECK(pending.phase == call_phase::waiting_for_reply);
  CHECK(pending.age <= ferry::clock::now() - before);
  CHECK(pending.until.at() > before + 49s);
  CHECK(pending.until.at() <= ferry::clock::now() + 50s);
  CHECK(pending.bytes >= 1000);
  CHECK(pending.bytes < 1200);
  CHECK(pending.transport == "inproc");
  CHECK_FALSE(pending.route.empty());
  const std::string line = to_string(pending);
  CHECK_MESSAGE(contains(line, "wait_at_gate"), line);
  CHECK_MESSAGE(contains(line, "waiting for the reply since"), line);
  CHECK_MESSAGE(contains(line, "name=worker1"), line);

  const auto served = only_served(group[1]);
  CHECK(served.id == pending.id);
  CHECK(served.method == pending.method);
  CHECK(served.caller == group[0].info());
  CHECK(served.phase == served_phase::running);
  CHECK(served.bytes == pending.bytes);
  CHECK_FALSE(served.one_way);
  CHECK_FALSE(served.unwanted);
  CHECK(served.until.at() > before + 49s);
  CHECK(contains(to_string(served), "running since"));

  CHECK(only_pending(group[0]).age >= pending.age);
  CHECK(group[0].served_calls().empty());
  CHECK(group[1].pending_calls().empty());
  hold.open();
  CHECK(result.get() == 7);
  CHECK(group[0].pending_calls().empty());
}

TEST_CASE("blocking calls, calls to oneself, nested ones and those without a deadline show, the oldest first") {
  hold.reset();
  cluster group(3);
  std::thread caller([&] { CHECK(group[0].rpc_sync<call_on>("worker1", std::string("worker2")) == 7); });
  hold.await_arrivals(1);
  const auto own =
      group[0].rpc_async<wait_at_gate>({"worker0", {.timeout = ferry::no_timeout}}, std::vector<std::byte>{});
  hold.await_arrivals(2);

  const auto calls = group[0].pending_calls();
  REQUIRE(calls.size() == 2);
  CHECK(contains(calls[0].method, "call_on"));
  CHECK(calls[0].peer == group[1].info());
  CHECK(calls[1].peer == group[0].info());
  CHECK(calls[1].until.is_never());
  CHECK(contains(to_string(calls[1]), "no deadline"));
  CHECK(only_served(group[0]).caller == group[0].info());

  // Where does it hang? worker1 waits for worker2, whose handler runs.
  CHECK(served_once(group[1], "call_on", served_phase::waiting).caller == group[0].info());
  CHECK(group[1].debug_info("agent.blocked_handlers") == "1");
  CHECK(only_pending(group[1]).peer == group[2].info());
  CHECK(only_served(group[2]).phase == served_phase::running);
  hold.open();
  caller.join();
  CHECK(own.get() == 7);
}

TEST_CASE("a request shows whether it is queued, runs, is to be answered later, and is still wanted") {
  hold.reset();
  ferry::promise<int> promised;
  answer = &promised;
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});

  const auto later = group[0].rpc_async<answer_later>("worker1");
  hold.await_arrivals(1);
  CHECK(served_once(group[1], "answer_later", served_phase::later).caller == group[0].info());
  CHECK(group[1].debug_info("agent.server_active_async_calls") == "1");

  group[0].notify<wait_at_gate_one_way>("worker1");
  hold.await_arrivals(2);
  const auto one_way = served_once(group[1], "wait_at_gate_one_way", served_phase::running);
  CHECK(one_way.one_way);
  CHECK(one_way.caller == group[0].info());
  CHECK(contains(to_string(one_way), "one-way call of"));

  auto queued = group[0].rpc_async<plus_one>("worker1", 1);
  CHECK_FALSE(served_once(group[1], "plus_one", served_phase::queued).unwanted);
  queued.cancel();
  while (!served_once(group[1], "plus_one", served_phase::queued).unwanted) std::this_thread::yield();
  CHECK(contains(to_string(served_once(group[1], "plus_one", served_phase::queued)), "no longer wanted"));
  CHECK(group[1].served_calls().size() == 3);
  CHECK(group[1].debug_info("agent.server_active_calls") == "3");
  hold.open();
  promised.set_value(5);
  CHECK(later.get() == 5);
  while (!group[1].served_calls().empty()) std::this_thread::yield();
  CHECK(group[1].debug_info("agent.server_active_async_calls") == "0");
}

TEST_CASE("a call to a process that hangs says where it hangs: connecting, or waiting for a handler") {
  captured_log log;
  SUBCASE("a handler that blocks") {
    process_group all(2, {.role = "member that gets stuck"});
    CHECK(all.child(1).read_line() == "joined");
    const auto result = all.self.rpc_async<block_in_child>("worker1");
    CHECK(all.child(1).read_line() == "blocked");
    const auto pending = only_pending(all.self);
    CHECK(contains(pending.method, "block_in_child"));
    CHECK(pending.peer.name() == "worker1");
    CHECK(pending.phase == call_phase::waiting_for_reply);
    CHECK(pending.transport == "shm");
    all.child(1).write_line("go on");
    CHECK(result.get() == 1);
    all.leave();
  }
  SUBCASE("a stopped process that was never called") {
    process_group all(2, {.role = "member that gets stuck"});
    CHECK(all.child(1).read_line() == "joined");
    all.child(1).stop();
    const auto result = all.self.rpc_async<plus_one>("worker1", 1);
    const auto pending = only_pending(all.self);
    CHECK(pending.phase == call_phase::connecting);
    CHECK(pending.transport.empty());
    CHECK(contains(to_string(pending), "connecting since"));
    CHECK_FALSE(contains(all.self.flight_record(), "call_sent"));
    all.child(1).kill(SIGCONT);
    CHECK(result.get() == 2);
    CHECK(contains(all.self.flight_record(), "call_sent"));
    all.leave();
  }
  SUBCASE("a stopped process that was called before") {
    process_group all(2, {.role = "member that gets stuck"});
    CHECK(all.child(1).read_line() == "joined");
    CHECK(all.self.rpc_sync<plus_one>("worker1", 1) == 2);
    all.child(1).stop();
    const auto result = all.self.rpc_async<plus_one>("worker1", 2);
    // The thread that sent the first call, which had to wait for the connection, may still be at it.
    while (only_pending(all.self).phase == call_phase::queued) std::this_thread::yield();
    CHECK(only_pending(all.self).phase == call_phase::waiting_for_reply);
    all.child(1).kill(SIGCONT);
    CHECK(result.get() == 3);
    all.leave();
  }
}

TEST_CASE("traffic counts calls, errors, requests served and bytes by peer, those of closed connections included") {
  captured_log log;
  cluster group(3);
  CHECK(group[0].traffic().empty());
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  CHECK(group[0].rpc_sync<zeros>("worker1", std::int64_t{1000}).numel() == 1000);
  CHECK_THROWS_AS(group[0].rpc_sync<fail>("worker1"), std::runtime_error);
  CHECK(group[2].rpc_sync<plus_one>("worker2", 1) == 2);

  const auto sent = group[0].traffic();
  REQUIRE(sent.size() == 1);
  CHECK(sent[0].peer == group[1].info());
  CHECK(sent[0].calls == 3);
  CHECK(sent[0].errors == 1);
  CHECK(sent[0].served == 0);
  CHECK(sent[0].bytes_sent > 3 * 64);
  CHECK(sent[0].bytes_received > 4000);
  const auto got = group[1].traffic();
  REQUIRE(got.size() == 1);
  CHECK(got[0].peer == group[0].info());
  CHECK(got[0].calls == 0);
  CHECK(got[0].served == 3);
  CHECK(got[0].bytes_received == sent[0].bytes_sent);
  CHECK(got[0].bytes_sent == sent[0].bytes_received);

  const auto own = group[2].traffic();
  REQUIRE(own.size() == 1);
  CHECK(own[0].peer == group[2].info());
  CHECK(own[0].calls == 1);
  CHECK(own[0].served == 1);
  CHECK(own[0].bytes_sent == own[0].bytes_received);

  group.shutdown();
  const auto after = group[0].traffic();
  REQUIRE(after.size() == 1);
  CHECK(after[0].calls == 3);
  CHECK(after[0].bytes_received == sent[0].bytes_received);
}

std::string figure_there(const std::string& name) { return ferry::debug_info(name); }
std::size_t figures_there() { return ferry::debug_info().size(); }

TEST_CASE("a handler can report figures of the worker that it runs at") {
  cluster group(2);
  group[1].add_debug_info("a test", {{"test.own", [] { return std::string("of worker1"); }}});
  CHECK(group[0].rpc_sync<figure_there>("worker1", std::string("test.own")) == "of worker1");
  CHECK(group[0].rpc_sync<figures_there>("worker1") == group[1].debug_info().size());
  expect_error(errc::invalid_argument, "debug_info has no figure 'test.own'",
               [&] { (void)group[0].rpc_sync<figure_there>("worker0", std::string("test.own")); });
}

TEST_CASE("debug_info has the figures of all providers, sorted; no two may give one figure") {
  cluster group(1);
  const ferry::worker& self = group[0];
  std::set<std::string> names;
  for (const auto& [name, value] : self.debug_info()) CHECK(names.insert(name).second);
  for (const char* name : {"agent.thread_pool_size", "agent.num_idle_threads", "agent.client_active_calls",
                           "agent.server_active_calls", "agent.server_active_async_calls"}) {
    CHECK_MESSAGE(names.contains(name), name);
  }
  std::atomic<int> entries{3};
  self.add_debug_info("my cache", {{"a_cache.entries", [&] { return std::to_string(entries.load()); }},
                                   {"a_cache.broken", []() -> std::string { throw std::runtime_error("no idea"); }}});
  CHECK(self.debug_info("a_cache.entries") == "3");
  entries = 4;
  CHECK(self.debug_info("a_cache.entries") == "4");
  CHECK(contains(self.debug_info("a_cache.broken"), "no idea"));
  const auto all = self.debug_info();
  CHECK(std::is_sorted(all.begin(), all.end()));
  CHECK(all.size() == names.size() + 2);

  const auto nothing = [] { return std::string(); };
  expect_error(errc::invalid_argument, "which my cache has already", [&] {
    self.add_debug_info("other", {{"other.first", nothing}, {"a_cache.entries", nothing}});
  });
  expect_error(errc::invalid_argument, "which the agent has already", [&] {
    self.add_debug_info("other", {{"agent.thread_pool_size", nothing}});
  });
  expect_error(errc::invalid_argument, "which other has already", [&] {
    self.add_debug_info("other", {{"twice", nothing}, {"twice", nothing}});
  });
  expect_error(errc::invalid_argument, "no name", [&] { self.add_debug_info("other", {{"", nothing}}); });
  expect_error(errc::invalid_argument, "no function", [&] { self.add_debug_info("other", {{"none", nullptr}}); });
  CHECK(self.debug_info().size() == all.size());
  group.shutdown();
  expect_error(errc::not_initialized, "shut down", [&] { self.add_debug_info("late", {{"late", nothing}}); });
}

TEST_CASE("snapshots may be taken while calls of all kinds come and go") {
  cluster group(2);
  std::atomic<bool> stop{false};
  std::thread observer([&] {
    while (!stop.load()) {
      for (int rank = 0; rank != 2; ++rank) {
        for (const auto& each : group[rank].pending_calls()) {
          if (each.method.empty()) stop = true;
        }
        for (const auto& each : group[rank].served_calls()) {
          if (each.method.empty()) stop = true;
        }
        (void)group[rank].traffic();
        (void)group[rank].debug_info();
      }
    }
  });
  for (int i = 0; i != 300; ++i) {
    CHECK(group[0].rpc_sync<plus_one>("worker1", i) == i + 1);
    const auto a = group[1].rpc_async<plus_one>("worker0", i);
    const auto b = group[0].rpc_async<zeros>("worker0", std::int64_t{10});
    group[0].notify<plus_one>("worker1", i);
    CHECK(a.get() == i + 1);
    CHECK(b.get().numel() == 10);
  }
  CHECK_FALSE(stop.load());
  stop = true;
  observer.join();
}

TEST_CASE("the control thread leaves signals to the program, but those of a crash to what reports it") {
  cluster group(2);
  CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
  bool found = false;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(thread.path() / "comm") >> name;
    if (name != "ferry-control") continue;
    std::ifstream status(thread.path() / "status");
    std::string key;
    while (status >> key && key != "SigBlk:") continue;
    std::uint64_t blocked = 0;
    REQUIRE((status >> std::hex >> blocked).good());
    const auto blocks = [&](int number) { return (blocked >> (number - 1) & 1U) != 0; };
    CHECK(blocks(SIGINT));
    CHECK(blocks(SIGTERM));
    for (const int crash : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV}) CHECK_FALSE(blocks(crash));
    found = true;
  }
  CHECK(found);
}

}  // namespace debug_test

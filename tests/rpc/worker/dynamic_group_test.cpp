// Groups that workers join and leave while they run.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/secret.hpp>
#include <ferry/store/tcp_store.hpp>

#include "dynamic_group.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "ports.hpp"
#include "rpc/worker/worker_core.hpp"

namespace dynamic_group_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry_test::watchdog;

int plus_one(int value) { return value + 1; }
std::string who_am_i() { return ferry::get_worker_info().name(); }
std::string call_back(const std::string& name) { return ferry::rpc_sync<who_am_i>(name); }
void go() { ferry::leave(); }
std::atomic<errc> wait_ended_with{};
void wait_for_third() {
  try {
    ferry::wait_for_worker("third", ferry::no_timeout);
  } catch (const ferry::error& e) {
    wait_ended_with = e.kind();
    throw;
  }
}
ferry_test::gate* held = nullptr;
int wait_for_gate() {
  held->pass();
  return 7;
}
void have_gate_awaited(const std::string& name) { ferry::notify<wait_for_gate>(name); }

namespace {

// Arguments: init method, name, rank, lease in ms. "call <name>": calls plus_one there; "wait <name>"; "members"; "leave".
// Answers with "done", the names, or the kind of the error. Its wait_for_gate() never returns.
const ferry_test::role newcomer("newcomer", [](const std::vector<std::string>& arguments) {
  auto config = config_of(arguments.at(0), arguments.at(1), std::stoi(arguments.at(2)));
  config.lease = std::chrono::milliseconds(std::stoll(arguments.at(3)));
  ferry_test::gate never;
  held = &never;
  ferry::worker self = ferry::init_rpc(config);
  ferry_test::tell_parent("joined");
  for (;;) {
    const std::string line = ferry_test::ask_parent();
    std::string answer = "done";
    try {
      if (line.starts_with("call ") && self.rpc_sync<plus_one>(line.substr(5), 1) != 2) answer = "wrong";
      if (line.starts_with("wait ")) self.wait_for_worker(line.substr(5));
      if (line == "members") {
        answer.clear();
        for (const auto& name : names_of(self.workers())) answer += (answer.empty() ? "" : " ") + name;
      }
      if (line == "leave") self.leave();
    } catch (const ferry::error& e) {
      answer = ferry::errc_name(e.kind());
    }
    ferry_test::tell_parent(answer);
    if (line == "leave") return 0;
  }
});

}  // namespace

TEST_CASE("[row 168] [row 169] a late member calls the present ones, and is called by them") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 0));
  CHECK(names_of(first.workers()) == std::vector<std::string>{"first"});
  std::vector<ferry::worker> late;
  for (int rank = 1; rank != 5; ++rank) {
    const std::string name = "late-" + std::to_string(rank);  // a dash is an ordinary character
    late.push_back(ferry::init_rpc(config_of(at.method, name, rank)));
    CHECK(late.back().id() == rank);
    CHECK(late.back().rpc_sync<plus_one>("first", rank) == rank + 1);
    CHECK(first.rpc_sync<plus_one>(name, rank) == rank + 1);
    CHECK(first.rpc_sync<plus_one>(ferry::worker_id{rank}, rank) == rank + 1);
    // The callee may have learned of the caller's join only from the caller.
    CHECK(late.back().rpc_sync<call_back>("first", name) == name);
  }
  for (auto& worker : late) CHECK(worker.rpc_sync<who_am_i>("late-1") == "late-1");
  // Any of them may leave, and in any order.
  first.shutdown();
  CHECK(late[0].rpc_sync<plus_one>("late-4", 1) == 2);
  for (auto& worker : late) worker.shutdown();
}

TEST_CASE("a dynamic group over a tcp store, with processes") {
  watchdog dog("a test with a dynamic group");
  const std::string meeting = "tcp://127.0.0.1:" + std::to_string(ferry_test::free_port());
  ferry::worker first = ferry::init_rpc(config_of(meeting, "first", 0));
  events seen(first);
  CHECK(seen.up_to("first joined") == std::vector<std::string>{"first joined"});
  auto one = start_newcomer(meeting, "one");
  auto two = start_newcomer(meeting, "two");
  CHECK(seen.up_to("two joined") == std::vector<std::string>{"one joined", "two joined"});
  CHECK(ask(*one, "call two") == "done");
  CHECK(ask(*two, "call one") == "done");
  CHECK(ask(*two, "call first") == "done");
  CHECK(first.rpc_sync<plus_one>("two", 1) == 2);
  CHECK(ask(*one, "leave") == "done");
  CHECK(one->wait() == 0);
  CHECK(seen.up_to("one left") == std::vector<std::string>{"one left"});
  CHECK(names_of(first.workers()) == std::vector<std::string>{"first", "two"});
  expect_error(errc::peer_lost, "left the group", [&] { first.rpc_sync<plus_one>("one", 1); });
  // Both its name and its id are free again.
  auto again = start_newcomer(meeting, "one", 1);
  CHECK(seen.up_to("one joined") == std::vector<std::string>{"one joined"});
  CHECK(first.rpc_sync<plus_one>("one", 1) == 2);
  CHECK(ask(*again, "leave") == "done");
  CHECK(ask(*two, "leave") == "done");
  first.leave();
}

TEST_CASE("names and ids of members that live are not unique twice") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 3));
  expect_error(errc::duplicate_name, "'first' is not unique",
               [&] { ferry::init_rpc(config_of(at.method, "first", 4)); });
  for (const char* name : {"second", "other"}) {
    try {
      (void)ferry::init_rpc(config_of(at.method, name, 3));
      FAIL_CHECK("two workers have one id");
    } catch (const ferry::error& problem) {
      CHECK(problem.kind() == errc::duplicate_id);
      CHECK_MESSAGE(std::string_view(problem.what()).find("worker id 3 is not unique") != std::string_view::npos,
                    problem.what());
      // The holder answers at once: it does not take the newcomer for one that joins.
      CHECK_MESSAGE(std::string_view(problem.what()).find("has not read yet") == std::string_view::npos,
                    problem.what());
    }
  }
  auto child = start_newcomer(at.method, "child", 4);
  expect_error(errc::duplicate_name, "'child' is not unique", [&] { ferry::init_rpc(config_of(at.method, "child")); });
  ferry::worker second = ferry::init_rpc(config_of(at.method, "second"));
  CHECK(second.id() == 0);
  CHECK(second.rpc_sync<plus_one>("first", 1) == 2);
  CHECK(ask(*child, "leave") == "done");
}

TEST_CASE("many join at once, each with an id of its own") {
  meeting_place at;
  std::vector<ferry::worker_config> configs;
  for (int i = 0; i != 12; ++i) configs.push_back(config_of(at.method, "w" + std::to_string(i)));
  auto started = ferry_test::start_workers(configs);
  std::vector<std::int32_t> ids;
  for (auto& each : started) {
    REQUIRE_FALSE(each.error);
    ids.push_back(each.worker.id().value);
  }
  std::sort(ids.begin(), ids.end());
  for (int i = 0; i != 12; ++i) CHECK(ids[static_cast<std::size_t>(i)] == i);
  std::vector<std::function<void()>> calls;
  for (auto& each : started) {
    calls.emplace_back([&each] {
      for (int i = 0; i != 12; ++i) {
        const std::string name = "w" + std::to_string(i);
        CHECK(each.worker.rpc_sync<who_am_i>(name) == name);
      }
    });
  }
  ferry_test::run_together(calls);
}

TEST_CASE("of several that want one name or id at once, one gets it") {
  meeting_place at;
  std::vector<ferry::worker_config> configs;
  for (int i = 0; i != 4; ++i) configs.push_back(config_of(at.method, "same"));
  for (int i = 0; i != 4; ++i) configs.push_back(config_of(at.method, "w" + std::to_string(i), 9));
  auto started = ferry_test::start_workers(configs);
  int named = 0;
  int numbered = 0;
  for (std::size_t i = 0; i != started.size(); ++i) {
    if (!started[i].error) {
      ++(i < 4 ? named : numbered);
      continue;
    }
    expect_error(i < 4 ? errc::duplicate_name : errc::duplicate_id, "not unique",
                 [&] { std::rethrow_exception(started[i].error); });
  }
  CHECK(named == 1);
  CHECK(numbered == 1);
}

TEST_CASE("[row 172] static and dynamic members are never mixed") {
  meeting_place at;
  auto fixed = config_of(at.method, "fixed", 0);
  fixed.world_size = 1;
  {
    ferry::worker first = ferry::init_rpc(fixed);
    expect_error(errc::group_mismatch, "static and dynamic members cannot be mixed",
                 [&] { ferry::init_rpc(config_of(at.method, "late", 1)); });
    CHECK(first.rpc_sync<plus_one>("fixed", 1) == 2);
  }
  meeting_place other;
  ferry::worker first = ferry::init_rpc(config_of(other.method, "first", 0));
  fixed.init_method = other.method;
  expect_error(errc::group_mismatch, "static and dynamic members cannot be mixed", [&] { ferry::init_rpc(fixed); });
  auto leases = config_of(other.method, "other", 5);
  leases.lease = 7s;
  expect_error(errc::group_mismatch, "lease", [&] { ferry::init_rpc(leases); });
  // Such keys outlive a group that was killed: what is to be done about it is said.
  expect_error(errc::group_mismatch, "another path or port", [&] { ferry::init_rpc(leases); });
  expect_error(errc::group_mismatch, "another path or port", [&] { ferry::init_rpc(fixed); });
  CHECK(names_of(first.workers()) == std::vector<std::string>{"first"});
}

TEST_CASE("a dead worker is removed, and its name and id are free again") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 0));
  events seen(first);
  auto second = start_newcomer(at.method, "second", 1);
  auto third = start_newcomer(at.method, "third", 2);
  seen.up_to("third joined");
  // It is never called: its neighbour in the ring watches it.
  second->kill(SIGKILL);
  CHECK(seen.up_to("second lost") == std::vector<std::string>{"second lost"});
  CHECK(names_of(first.workers()) == std::vector<std::string>{"first", "third"});
  expect_error(errc::peer_lost, "dead", [&] { first.rpc_sync<plus_one>("second", 1); });
  auto again = start_newcomer(at.method, "second", 1);
  CHECK(seen.up_to("second joined") == std::vector<std::string>{"second joined"});
  CHECK(first.rpc_sync<plus_one>("second", 1) == 2);
  CHECK(ask(*third, "wait second") == "done");
  CHECK(ask(*third, "call second") == "done");
  CHECK(ask(*again, "leave") == "done");
  CHECK(ask(*third, "leave") == "done");
}

TEST_CASE("a one-way call of a dead worker is shown as its own, although its id was reassigned") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 0));
  events seen(first);
  ferry_test::gate gate;
  held = &gate;
  auto old = start_newcomer(at.method, "old", 1);
  seen.up_to("old joined");
  const ferry::worker_info caller = first.get_worker_info("old");
  first.rpc_sync<have_gate_awaited>("old", "first");
  gate.await_arrivals(1);
  const auto check = [&] {
    const auto served = first.served_calls();
    REQUIRE(served.size() == 1);
    CHECK(served.front().one_way);
    CHECK(served.front().caller == caller);
  };
  check();
  old->kill(SIGKILL);
  seen.up_to("old lost");
  check();
  auto heir = start_newcomer(at.method, "heir", 1);
  seen.up_to("heir joined");
  CHECK(first.get_worker_info("heir").id() == caller.id());
  check();
  gate.open();
  CHECK(ask(*heir, "leave") == "done");
}

TEST_CASE("a death that is told after the join of a successor reaches the observers, and takes nothing from that one") {
  using kind = ferry::member_event::kind;
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 0));
  events seen(first);
  ferry::request_handler& core = *first.core();
  const ferry::worker_info old("old", 5);
  const ferry::worker_info heir("heir", 5);
  core.on_member_event({kind::joined, old, {1}, {}});
  core.on_member_event({kind::joined, heir, {2}, {}});
  core.on_member_event({kind::lost, old, {1}, "it was killed"});
  CHECK(seen.up_to("old lost") == std::vector<std::string>{"first joined", "old joined", "heir joined", "old lost"});
  events later(first);
  CHECK(later.up_to("heir joined") == std::vector<std::string>{"first joined", "heir joined"});
  core.on_member_event({kind::lost, heir, {2}, "it was killed, too"});
  CHECK(seen.up_to("heir lost") == std::vector<std::string>{"heir lost"});
  CHECK(later.up_to("heir lost") == std::vector<std::string>{"heir lost"});
}

TEST_CASE("a worker that restarts at once takes the place of its predecessor, noticed or not") {
  meeting_place at;
  auto old = start_newcomer(at.method, "server", 1);
  old->kill(SIGKILL);
  (void)old->wait();
  auto fresh = start_newcomer(at.method, "server", 1);
  ferry::worker self = ferry::init_rpc(config_of(at.method, "client"));
  CHECK(self.rpc_sync<plus_one>("server", 1) == 2);
  CHECK(names_of(self.workers()) == std::vector<std::string>{"client", "server"});
  CHECK(ask(*fresh, "leave") == "done");
}

TEST_CASE("a stopped worker loses its place after a lease, and learns of it") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first", 0));
  events seen(first);
  auto sleeper = start_newcomer(at.method, "sleeper", 1);
  seen.up_to("sleeper joined");
  CHECK(ask(*sleeper, "call first") == "done");
  stop_outside_of_store(at.directory.file("store"), {sleeper.get()});
  // Whether the others or the one that wants its place are first, it is dead.
  auto heir = start_newcomer(at.method, "sleeper", 1);
  seen.up_to("sleeper joined");
  CHECK(first.rpc_sync<plus_one>("sleeper", 1) == 2);
  sleeper->kill(SIGCONT);
  std::string answer;
  while (answer != "fenced") answer = ask(*sleeper, "call first");
  CHECK(first.rpc_sync<plus_one>("sleeper", 1) == 2);
  CHECK(ask(*sleeper, "leave") == "fenced");
  CHECK(ask(*heir, "leave") == "done");
}

TEST_CASE("wait_for_worker waits for one that has yet to join") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(config_of(at.method, "first"));
  expect_error(errc::rpc_timeout, "'second'", [&] { first.wait_for_worker("second", 20ms); });
  std::atomic<bool> there{false};
  std::thread waiting([&] {
    const auto who = first.wait_for_worker("second");
    there = true;
    CHECK(first.rpc_sync<plus_one>(who, 1) == 2);
  });
  CHECK_FALSE(there.load());
  ferry::worker second = ferry::init_rpc(config_of(at.method, "second"));
  waiting.join();
  CHECK(first.wait_for_worker("first").name() == "first");
  CHECK(ferry::wait_for_worker("second").name() == "second");

  SUBCASE("no worker can join a static group") {
    ferry_test::cluster group(2);
    CHECK(group[0].wait_for_worker("worker1", 10s).id() == 1);
    expect_error(errc::unknown_worker, "'worker7'", [&] { group[0].wait_for_worker("worker7", 100s); });
  }
  SUBCASE("a worker that ends waits no more") {
    // In a handler, so that it can be seen that it waits.
    auto result = second.rpc_async<wait_for_third>("first");
    while (first.debug_info("agent.blocked_handlers") != "1") std::this_thread::yield();
    // It keeps no place from others: there is one for each thread.
    for (int i = 0; i != 100; ++i) CHECK(second.rpc_sync<plus_one>("first", i) == i + 1);
    CHECK_FALSE(result.ready());
    first.shutdown(false);
    CHECK_THROWS_AS(result.get(), ferry::error);  // what the handler threw, or the loss of the connection
    CHECK(wait_ended_with.load() == errc::shutting_down);
  }
}

TEST_CASE("metadata reach every member") {
  meeting_place at;
  auto config = config_of(at.method, "first");
  config.metadata = std::string("\0\n\ngpu=2\xff", 9);
  ferry::worker first = ferry::init_rpc(config);
  ferry::worker second = ferry::init_rpc(config_of(at.method, "second"));
  CHECK(second.metadata("first") == config.metadata);
  CHECK(first.metadata("second").empty());
  config.name = "third";
  config.metadata = std::string(ferry::worker_config::max_metadata + 1, 'x');
  expect_error(errc::invalid_argument, "metadata", [&] { ferry::init_rpc(config); });

  ferry_test::cluster group(2, {.configure = [](ferry::worker_config& each) { each.metadata = "of " + each.name; }});
  CHECK(group[0].metadata("worker1") == "of worker1");
}

TEST_CASE("a leaving worker ends its calls and handlers first") {
  meeting_place at;
  ferry::worker caller = ferry::init_rpc(config_of(at.method, "caller"));
  ferry::worker server = ferry::init_rpc(config_of(at.method, "server"));
  events seen(caller);
  ferry_test::gate gate;
  held = &gate;
  auto result = caller.rpc_async<wait_for_gate>("server");
  gate.await_arrivals(1);
  std::thread leaving([&] { server.leave(); });
  seen.up_to("server left");
  expect_error(errc::peer_lost, "left the group", [&] { caller.rpc_sync<plus_one>("server", 1); });
  gate.open();
  CHECK(result.get() == 7);
  leaving.join();

  SUBCASE("but not longer than it is told") {
    ferry::worker impatient = ferry::init_rpc(config_of(at.method, "impatient"));
    ferry_test::gate never;
    held = &never;
    auto lost = caller.rpc_async<wait_for_gate>("impatient");
    never.await_arrivals(1);
    expect_error(errc::shutdown_timeout, "impatient", [&] {
      std::thread opener([&] {
        expect_error(errc::peer_lost, "", [&] { lost.get(); });
        never.open();
      });
      try {
        impatient.leave(10ms);
      } catch (...) {
        opener.join();
        throw;
      }
      opener.join();
    });
  }
}

TEST_CASE("serve_forever serves until leave is called") {
  meeting_place at;
  ferry::worker caller = ferry::init_rpc(config_of(at.method, "caller"));
  ferry::worker server = ferry::init_rpc(config_of(at.method, "server"));
  SUBCASE("in a handler") {
    std::thread serving([&] { server.serve_forever(); });
    CHECK(caller.rpc_sync<plus_one>("server", 1) == 2);
    caller.rpc_sync<go>("server");
    serving.join();
  }
  SUBCASE("in a handler, before it is called") {
    caller.rpc_sync<go>("server");
    CHECK(caller.rpc_sync<plus_one>("server", 1) == 2);
    server.serve_forever();
  }
  SUBCASE("on another thread") {
    std::thread serving([&] { server.serve_forever(); });
    CHECK(caller.rpc_sync<plus_one>("server", 1) == 2);
    server.leave();
    serving.join();
  }
  SUBCASE("or shutdown") {
    std::thread serving([&] { server.serve_forever(); });
    server.shutdown(false);
    serving.join();
  }
  SUBCASE("unless it was over before") {
    server.leave();
    server.serve_forever();
  }
  expect_error(errc::not_initialized, "shut down", [&] { server.rpc_sync<plus_one>("caller", 1); });
}

TEST_CASE("serve_forever in a static group ends with the group, or with leave") {
  SUBCASE("the others have shut down") {
    ferry_test::cluster group(3);
    std::thread one([&] { group[1].serve_forever(); });
    std::thread two([&] { group[2].serve_forever(); });
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
    group[0].shutdown();
    one.join();
    two.join();
  }
  SUBCASE("one leaves alone; the others go on, and part without it") {
    ferry_test::cluster group(3);
    std::thread one([&] { group[1].serve_forever(); });
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
    group[0].rpc_sync<go>("worker1");
    one.join();
    expect_error(errc::peer_lost, "", [&] { group[0].rpc_sync<plus_one>("worker1", 1); });
    CHECK(group[0].rpc_sync<plus_one>("worker2", 1) == 2);
  }
  SUBCASE("leave, while a shutdown waits for the others") {
    ferry_test::cluster group(2);
    std::thread waiting([&] { group[1].shutdown(); });
    CHECK(group[0].rpc_sync<plus_one>("worker1", 1) == 2);
    group[1].leave();
    waiting.join();
  }
}

TEST_CASE("any_rank needs a dynamic group, and a rank is needed otherwise") {
  meeting_place at;
  auto config = config_of(at.method, "w", ferry::any_rank);
  config.world_size = 2;
  expect_error(errc::invalid_argument, "any_rank", [&] { ferry::init_rpc(config); });
  config.world_size = -7;
  expect_error(errc::invalid_argument, "world_size -7", [&] { ferry::init_rpc(config); });
  config = config_of(at.method, "w", -1);
  expect_error(errc::bad_init_method, "rank parameter missing", [&] { ferry::init_rpc(config); });
}

TEST_CASE("a worker that joins and leaves under one name is never taken for its own predecessor") {
  meeting_place at;
  std::vector<ferry::worker> others;
  for (int i = 0; i != 3; ++i) others.push_back(ferry::init_rpc(config_of(at.method, "other-" + std::to_string(i))));
  for (int i = 0; i != 60; ++i) {
    ferry::worker self = ferry::init_rpc(config_of(at.method, "same"));
    for (auto& other : others) CHECK(self.rpc_sync<call_back>(other.name(), "same") == "same");
    CHECK_FALSE(self.fenced());
    self.leave();
  }
}

TEST_CASE(
    "a worker that has joined is called at once by name and by id, although the end of its predecessor is known") {
  meeting_place at;
  ferry::worker self = ferry::init_rpc(config_of(at.method, "self"));
  for (int i = 0; i != 60; ++i) {
    CAPTURE(i);
    ferry::worker successor = ferry::init_rpc(config_of(at.method, "same", i % 2 == 0 ? 7 : 7 + i));
    CHECK(self.rpc_sync<plus_one>("same", 1) == 2);
    CHECK(self.rpc_sync<plus_one>(successor.id(), 1) == 2);
    i % 3 == 0 ? successor.shutdown(false) : successor.leave();
  }
  for (int i = 0; i != 5; ++i) {
    CAPTURE(i);
    ferry_test::child_process successor({.role = "newcomer", .arguments = {at.method, "restarted", "5", "5000"}});
    CHECK(successor.read_line() == "joined");
    CHECK(self.rpc_sync<plus_one>("restarted", 1) == 2);
    CHECK(self.rpc_sync<plus_one>(ferry::worker_id{5}, 1) == 2);
    events seen(self);
    successor.kill(SIGKILL);
    (void)successor.wait();
    seen.up_to("restarted lost");
  }
  // There is no successor: the call says what has become of the worker.
  expect_error(errc::peer_lost, "it is dead", [&] { self.rpc_sync<plus_one>("restarted", 1); });
}

// The caller may have read neither that the worker has ended nor that another one has joined: a call may still go to the old one.
TEST_CASE("one call at most fails of a worker that was killed and has been restarted under its name") {
  meeting_place at;
  ferry::worker self = ferry::init_rpc(config_of(at.method, "self"));
  for (int i = 0; i != 15; ++i) {
    CAPTURE(i);
    ferry_test::child_process server({.role = "newcomer", .arguments = {at.method, "server", "5", "5000"}});
    CHECK(server.read_line() == "joined");
    const auto began = ferry::clock::now();
    int failed = 0;
    for (bool reached = false; !reached;) {
      try {
        CHECK(self.rpc_sync<plus_one>("server", 1) == 2);
        reached = true;
      } catch (const ferry::error&) {
        ++failed;
        REQUIRE(ferry::clock::now() - began < std::chrono::seconds(30));
      }
    }
    // Where the machine is so busy that the log is not read in that time, calls do not wait for it again.
    if (ferry::clock::now() - began < std::chrono::milliseconds(90)) CHECK(failed <= 1);
    CHECK(self.rpc_sync<plus_one>(ferry::worker_id{5}, 1) == 2);
    server.kill(SIGKILL);
    (void)server.wait();
  }
}

TEST_CASE("a worker that leaves without waiting is gone for all members, later ones included") {
  meeting_place at;
  std::vector<ferry::worker> group;
  for (int i = 0; i != 6; ++i) group.push_back(ferry::init_rpc(config_of(at.method, "w" + std::to_string(i), i)));
  events seen(group[1]);
  group[3].shutdown(false);
  seen.up_to("w3 left");
  ferry::worker late = ferry::init_rpc(config_of(at.method, "late"));
  CHECK(names_of(late.workers()) == std::vector<std::string>{"late", "w0", "w1", "w2", "w4", "w5"});
  expect_error(errc::rpc_timeout, "'w3'", [&] { late.wait_for_worker("w3", 1ms); });
}

// The caller has read of their joins, and of their leaves perhaps not; it has no connection to them.
TEST_CASE("a call of a worker that has left is told so, also where that one was never called before") {
  meeting_place at;
  const ferry::worker caller = ferry::init_rpc(config_of(at.method, "caller"));
  for (int i = 0; i != 15; ++i) {
    const std::string name = "w" + std::to_string(i % 3);
    ferry::worker_id id;
    {
      ferry::worker other = ferry::init_rpc(config_of(at.method, name));
      id = caller.wait_for_worker(name).id();
      other.leave();
    }
    try {
      (void)caller.rpc_sync<plus_one>(id, 1);
      FAIL_CHECK("there is nothing that answers");
    } catch (const ferry::error& e) {
      CAPTURE(e.what());
      CHECK((e.kind() == errc::peer_lost || e.kind() == errc::unknown_worker));
    }
  }
}

TEST_CASE("a worker that answers, whatever the answer, is alive, and keeps its name") {
  meeting_place at;
  auto config = config_of(at.method, "holder");
  config.transports = {"tcp"};
  ferry::worker holder = ferry::init_rpc(config);
  SUBCASE("no transport in common") {
    config.transports = {"unix"};
    expect_error(errc::duplicate_name, "'holder' is not unique", [&] { ferry::init_rpc(config); });
  }
  SUBCASE("another secret") {
    if (!ferry::authentication_available()) return;
    config.secret = "one that the holder does not know";
    expect_error(errc::duplicate_name, "'holder' is not unique", [&] { ferry::init_rpc(config); });
  }
  CHECK_FALSE(holder.fenced());
  CHECK(holder.rpc_sync<plus_one>("holder", 1) == 2);
}

TEST_CASE("a future that is kept does not keep the store of a group that its worker has left") {
  watchdog dog("a test with a dynamic group");
  const auto port = ferry_test::free_port();
  const std::string meeting = "tcp://127.0.0.1:" + std::to_string(port);
  ferry::future<int> kept;
  {
    ferry::worker self = ferry::init_rpc(config_of(meeting, "first", 0));
    ferry::worker other = ferry::init_rpc(config_of(meeting, "second"));
    kept = self.rpc_async<plus_one>("second", 1);
    CHECK(kept.get() == 2);
    other.leave();
    self.leave();
  }
  CHECK_THROWS_AS(ferry::tcp_store({.host = "127.0.0.1", .port = port, .limit = 1ms}), ferry::error);
  CHECK(kept.get() == 2);
}

TEST_CASE("a handler that asked to leave before is heard by shutdown, too") {
  ferry_test::cluster group(2, {.graceful = false});
  group[0].rpc_sync<go>("worker1");
  group[1].shutdown();  // worker0 never comes
  expect_error(errc::peer_lost, "", [&] { group[0].rpc_sync<plus_one>("worker1", 1); });
}

}  // namespace dynamic_group_test

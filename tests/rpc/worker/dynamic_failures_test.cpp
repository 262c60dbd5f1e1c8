// Dynamic groups whose members drain for long, die side by side, or whose store hangs.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include <ferry/store/file_store.hpp>
#include <ferry/store/tcp_store.hpp>

#include "backend/membership/membership.hpp"
#include "captured_log.hpp"
#include "dynamic_group.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "ports.hpp"
#include "rpc/worker/worker_core.hpp"
#include "silent_listener.hpp"

namespace dynamic_failures_test {

using namespace std::chrono_literals;
using namespace dynamic_group_test;
using ferry::errc;
using ferry_test::child_process;
using ferry_test::watchdog;

ferry_test::gate* held = nullptr;
int wait_for_gate() {
  held->pass();
  return 7;
}
int twice(int value) { return 2 * value; }
// Looks for a worker that does not exist.
void look_for(const std::string& name) { ferry::rpc_sync<twice>({name, {.timeout = ferry::timeout(100s)}}, 1); }

namespace {

constexpr auto short_lease = 5s;

ferry::worker_config member(const std::string& meeting, const std::string& name, int rank = ferry::any_rank) {
  auto config = config_of(meeting, name, rank);
  config.lease = short_lease;
  return config;
}

// A process that serves a store, and nothing else. Prints its port.
const ferry_test::role store_server("store server", [](const std::vector<std::string>&) {
  const auto server = ferry::tcp_store_server::listen("127.0.0.1", 0);
  ferry_test::tell_parent(std::to_string(server->port()));
  (void)ferry_test::ask_parent();
  return 0;
});

// Methods that the child serves, too.
const ferry_test::role drainer("drainer", [](const std::vector<std::string>& arguments) {
  ferry_test::gate never;
  held = &never;
  ferry::worker self = ferry::init_rpc(member(arguments.at(0), arguments.at(1), std::stoi(arguments.at(2))));
  ferry_test::tell_parent("joined");
  (void)ferry_test::ask_parent();
  self.leave();
  return 0;
});

std::vector<std::string> entries_of(ferry::store& store) {
  std::vector<std::string> result;
  for (const auto& each : store.list("ferry/dynamic/log/")) result.push_back(each.value);
  return result;
}

struct store_process {
  watchdog dog{"a test with a dynamic group and a store of its own"};
  child_process server{{.role = "store server"}};
  std::uint16_t port = static_cast<std::uint16_t>(std::stoi(server.read_line()));
  std::string method = "tcp://127.0.0.1:" + std::to_string(port);

  [[nodiscard]] std::vector<std::string> log() const {
    ferry::tcp_store store({.host = "127.0.0.1", .port = port});
    return entries_of(store);
  }
};

std::size_t count(const std::vector<std::string>& entries, std::string_view verb) {
  return static_cast<std::size_t>(
      std::count_if(entries.begin(), entries.end(), [&](const auto& each) { return each.starts_with(verb); }));
}

bool other_threads_sleep() {
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
    if (each.path().filename() == std::to_string(::gettid())) continue;
    std::ifstream file(each.path() / "stat");
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    if (!stat.empty() && stat.at(stat.rfind(')') + 2) != 'S') return false;
  }
  return true;
}

// How long an action takes that is to end with an error.
template <class Action>
std::chrono::nanoseconds time_to_fail(errc kind, const Action& action) {
  const auto began = ferry::clock::now();
  expect_error(kind, "", action);
  return ferry::clock::now() - began;
}

}  // namespace

TEST_CASE("what a member wrote and could not tell the others of is read all the same") {
  using ferry::detail::member_entry;
  meeting_place at;
  ferry::worker self = ferry::init_rpc(member(at.method, "self"));
  ferry::file_store store(at.directory.file("store"));
  const auto own = member_entry::decode(entries_of(store).at(0)).record.incarnation;
  while (!other_threads_sleep()) std::this_thread::yield();  // until it waits: else it would read the entry anyway
  store.set("ferry/dynamic/log/2", member_entry::suspect(own, own).encode());  // and "tail" says nothing of it
  CHECK(member_entry::decode(store.get("ferry/dynamic/log/3", 100s)).what == member_entry::kind::alive);
  self.leave();
}

TEST_CASE("workers that have no transport in common say so, with those of one and the addresses of the other") {
  meeting_place at;
  auto over_tcp = member(at.method, "by_tcp", 0);
  over_tcp.transports = {"tcp"};
  auto over_unix = member(at.method, "by_unix", 1);
  over_unix.transports = {"unix"};
  ferry::worker first = ferry::init_rpc(over_tcp);
  ferry::worker second = ferry::init_rpc(over_unix);
  for (const char* part :
       {"no transport of this worker (unix)", "an address of 'by_tcp' (tcp://", "worker_config::transports"})
    expect_error(errc::no_route, part, [&] { (void)second.rpc_sync<twice>("by_tcp", 1); });
  second.shutdown(false);
  first.shutdown(false);
}

TEST_CASE("a leaving worker keeps its name and its id until its calls have ended") {
  meeting_place at;
  ferry::worker server = ferry::init_rpc(member(at.method, "server", 0));
  ferry::worker caller = ferry::init_rpc(member(at.method, "caller", 1));
  events seen(caller);
  ferry_test::gate gate;
  held = &gate;
  auto result = caller.rpc_async<wait_for_gate>("server");
  gate.await_arrivals(1);
  std::thread leaving([&] { server.leave(); });
  seen.up_to("server left");
  CHECK(names_of(caller.workers()) == std::vector<std::string>{"caller"});
  expect_error(errc::peer_lost, "left the group", [&] { caller.rpc_sync<twice>("server", 1); });
  // Longer than a lease: both of them still hear each other.
  auto heir = member(at.method, "server");
  heir.init_timeout = 3 * short_lease;
  expect_error(errc::duplicate_name, "is leaving the group", [&] { ferry::init_rpc(heir); });
  heir.name = "other";
  heir.rank = 0;
  expect_error(errc::duplicate_id, "is leaving the group", [&] { ferry::init_rpc(heir); });
  heir.rank = ferry::any_rank;
  heir.init_timeout = 100s;
  ferry::worker other = ferry::init_rpc(heir);
  CHECK(other.id() == 2);
  // A worker that joins in between has the same record of it.
  expect_error(errc::peer_lost, "left the group", [&] { other.rpc_sync<twice>("server", 1); });
  CHECK(names_of(other.workers()) == std::vector<std::string>{"caller", "other"});

  heir.name = "server";
  heir.rank = 0;
  ferry::worker next;
  std::thread waiting([&] { next = ferry::init_rpc(heir); });
  CHECK_FALSE(result.ready());
  gate.open();
  CHECK(result.get() == 7);
  leaving.join();
  waiting.join();
  CHECK(next.id() == 0);
  CHECK(caller.wait_for_worker("server", 100s).id() == 0);
  CHECK(caller.rpc_sync<twice>("server", 4) == 8);
  CHECK(caller.debug_info("agent.lost_workers") == "0");
}

TEST_CASE("a worker that dies while it leaves is gone: its calls end, and its name and id are free") {
  meeting_place at;
  ferry::worker caller = ferry::init_rpc(member(at.method, "caller", 1));
  events seen(caller);
  child_process child({.role = "drainer", .arguments = {at.method, "drainer", "0"}});
  REQUIRE(child.read_line() == "joined");
  auto result = caller.rpc_async<wait_for_gate>("drainer");
  caller.wait_for_worker("drainer", 100s);
  CHECK(caller.rpc_sync<twice>("drainer", 1) == 2);
  child.write_line("leave");
  seen.up_to("drainer left");
  SUBCASE("killed") {
    child.kill(SIGKILL);
    expect_error(errc::peer_lost, "", [&] { result.get(); });
  }
  SUBCASE("stopped") {
    stop_outside_of_store(at.directory.file("store"), {&child});
    expect_error(errc::peer_lost, "left the group, and died", [&] { result.get(); });
  }
  SUBCASE("killed, and its place is wanted at once") {
    child.kill(SIGKILL);
    ferry::worker heir = ferry::init_rpc(member(at.method, "drainer", 0));
    CHECK(caller.wait_for_worker("drainer", 100s).id() == 0);
  }
  // Its watchers report that it is gone, although no worker requests its place.
  for (;;) {
    ferry::worker heir = ferry::init_rpc(member(at.method, "heir"));
    if (heir.id() == 0) break;
  }
  CHECK(caller.debug_info("agent.lost_workers") == "0");
}

TEST_CASE("neighbours that fall silent together are found out, all of them") {
  meeting_place at;
  std::vector<std::unique_ptr<child_process>> others;
  for (int i = 1; i != 5; ++i) others.push_back(start_newcomer(at.method, "w" + std::to_string(i), i));
  // No worker has ever called them. Each watches the next one, and this one the first of them; it has nothing to do with the others.
  ferry::worker first = ferry::init_rpc(member(at.method, "w0", 0));
  stop_outside_of_store(at.directory.file("store"), {others[0].get(), others[1].get(), others[2].get()});
  while (first.workers().size() != 2) std::this_thread::sleep_for(1ms);
  CHECK(names_of(first.workers()) == std::vector<std::string>{"w0", "w4"});
  CHECK(ask(*others[3], "call w0") == "done");
  while (ask(*others[3], "members") != "w0 w4") std::this_thread::yield();  // it may hear of it later
  CHECK_FALSE(first.fenced());
  ferry::file_store store(at.directory.file("store"));
  CHECK(count(entries_of(store), "suspect") >= 2);
  CHECK(ask(*others[3], "leave") == "done");
}

TEST_CASE("a member that its neighbour cannot reach answers in the log, and stays") {
  meeting_place at;
  const ferry_test::silent_listener nobody;  // takes connections, and says nothing
  std::vector<ferry::worker> group;
  for (const int i : {1, 2, 0}) {
    auto config = member(at.method, "w" + std::to_string(i), i);
    config.transports = {"tcp"};
    if (i == 1) config.transport.advertise = "127.0.0.1:" + std::to_string(nobody.port());
    group.push_back(ferry::init_rpc(config));
  }
  ferry::file_store store(at.directory.file("store"));
  std::vector<std::string> entries;
  while (count(entries, "alive") < 2) {
    entries = entries_of(store);
    std::this_thread::sleep_for(10ms);
  }
  CHECK(count(entries, "suspect") >= 2);
  CHECK(count(entries, "lost") == 0);
  for (auto& worker : group) {
    CHECK_FALSE(worker.fenced());
    CHECK(worker.workers().size() == 3);
  }
  CHECK(group[0].rpc_sync<twice>("w0", 1) == 2);
  for (auto& worker : group) worker.leave();
}

TEST_CASE("a worker that is killed while it joins leaves nothing behind") {
  meeting_place at;
  ferry::worker first = ferry::init_rpc(member(at.method, "first", 0));
  for (int i = 0; i != 20; ++i) {
    child_process child({.role = "newcomer", .arguments = {at.method, "second", "1", "5000"}});
    std::this_thread::sleep_for(i * 3ms);  // at any point of its start: when it has listened, when it has joined ...
    child.kill(SIGKILL);
    (void)child.wait();
  }
  auto second = start_newcomer(at.method, "second", 1);
  CHECK(ask(*second, "call first") == "done");
  first.wait_for_worker("second", 100s);
  CHECK(first.rpc_sync<twice>("first", 1) == 2);
  CHECK(names_of(first.workers()) == std::vector<std::string>{"first", "second"});
  CHECK(ask(*second, "leave") == "done");
}

TEST_CASE("a store that hangs holds no caller beyond its deadline") {
  store_process store;
  auto one = config_of(store.method, "one", 1);
  one.num_worker_threads = 1;
  ferry::worker server = ferry::init_rpc(one);
  ferry::worker self = ferry::init_rpc(config_of(store.method, "two", 2));
  CHECK(self.rpc_sync<twice>("one", 1) == 2);
  CHECK(server.rpc_sync<twice>("two", 1) == 2);
  store.server.stop();
  constexpr auto promptly = 4500ms;  // a request to the store that hangs ends after 5 s

  SUBCASE("lookups, alone and many at once") {
    const auto look = [&] { self.rpc_sync<twice>({"nobody", {.timeout = 100ms}}, 1); };
    CHECK(time_to_fail(errc::rpc_timeout, look) < promptly);
    std::vector<std::function<void()>> all;
    for (int i = 0; i != 6; ++i) all.emplace_back([&] { CHECK(time_to_fail(errc::rpc_timeout, look) < promptly); });
    ferry_test::run_together(all);
    CHECK(time_to_fail(errc::rpc_timeout, [&] { self.wait_for_worker("nobody", 100ms); }) < promptly);
    // Members that are known are called as ever.
    CHECK(self.rpc_sync<twice>("one", 2) == 4);
  }
  SUBCASE("a handler that looks for a worker gives its place to others") {
    auto looking = self.rpc_async<look_for>("one", std::string("nobody"));
    while (server.debug_info("agent.blocked_handlers") != "1") std::this_thread::yield();
    CHECK(self.rpc_sync<twice>("one", 3) == 6);
    CHECK_FALSE(looking.ready());
    expect_error(errc::unknown_worker, "the group's store", [&] { looking.get(); });
  }
  SUBCASE("leave") {
    const auto began = ferry::clock::now();
    self.leave(100ms);
    CHECK(ferry::clock::now() - began < promptly);
  }
  SUBCASE("a shutdown that waits for nothing") {
    const auto began = ferry::clock::now();
    self.shutdown(false);
    CHECK(ferry::clock::now() - began < promptly);
  }
  store.server.kill(SIGKILL);  // no thread waits for it any more
  self.shutdown(false);
  server.shutdown(false);
}

TEST_CASE("a death that the store did not take is told to it again") {
  const ferry_test::captured_log logged(ferry::log_level::info);
  store_process store;
  ferry::worker self = ferry::init_rpc(member(store.method, "self", 1));
  auto victim = start_newcomer(store.method, "victim", 2);
  self.wait_for_worker("victim", 100s);
  store.server.stop();
  victim->kill(SIGKILL);
  while (!logged.has("victim", "is lost", "the store has no record yet")) std::this_thread::yield();
  store.server.kill(SIGCONT);
  while (count(store.log(), "lost") == 0) std::this_thread::yield();
  CHECK_FALSE(self.fenced());
}

TEST_CASE("a call whose callee was replaced after it was looked up does not reach the successor") {
  meeting_place at;
  auto server = std::make_unique<ferry::worker>(ferry::init_rpc(member(at.method, "server", 0)));
  ferry::worker caller = ferry::init_rpc(member(at.method, "caller", 1));
  const auto core = ferry::detail::current_worker();
  REQUIRE(core->agent().self().name() == "caller");
  CHECK(caller.rpc_sync<twice>("server", 1) == 2);
  for (const bool same_name : {false, true}) {
    ferry::detail::outgoing_call call(core, "server", ferry::detail::usable_method<twice>(),
                                      ferry::detail::call_mode::waiting);
    ferry::detail::write_arguments<twice, ferry::detail::method_flavour::call>(call, 1);
    server->leave();
    const std::string name = same_name ? "server" : "heir";
    server = std::make_unique<ferry::worker>(ferry::init_rpc(member(at.method, name, 0)));
    caller.wait_for_worker(name, 100s);
    CHECK(caller.rpc_sync<twice>(name, 1) == 2);
    expect_error(errc::peer_lost,
                 "to worker_info(id=0, name=server) failed while connecting: it is no longer a member of the group",
                 [&] { call.run(); });
    if (same_name) break;
    server->leave();
    server = std::make_unique<ferry::worker>(ferry::init_rpc(member(at.method, "server", 0)));
    caller.wait_for_worker("server", 100s);
  }
}

TEST_CASE("an abrupt shutdown ends a leave that has yet to begin") {
  meeting_place at;
  ferry::worker server = ferry::init_rpc(member(at.method, "server"));
  const auto core = ferry::detail::current_worker();
  ferry::worker caller = ferry::init_rpc(member(at.method, "caller"));
  ferry_test::gate gate;
  held = &gate;
  auto result = caller.rpc_async<wait_for_gate>("server");
  gate.await_arrivals(1);
  core->agent().stop_leaving(false);
  expect_error(errc::shutting_down, "", [&] { core->agent().leave_together({}); });
  core->agent().stop_leaving(true);
  expect_error(errc::shutting_down, "", [&] { core->agent().leave({}); });
  gate.open();
  CHECK(result.get() == 7);
}

TEST_CASE("an expired call outside of handlers does not speak of one") {
  ferry_test::cluster group(2);
  expect_error(errc::rpc_timeout, "its timeout of", [&] { group[0].rpc_sync<twice>({1, {.timeout = 1ns}}, 1); });
}

}  // namespace dynamic_failures_test

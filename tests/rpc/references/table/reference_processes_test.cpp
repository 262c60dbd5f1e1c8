// References between processes: while all are alive, and when owners, holders or intermediaries die, stop, or leave.

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/faulty.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "references.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace reference_processes_test {

using namespace std::chrono_literals;
using namespace references_test;
using ferry::errc;
using ferry::rref;
using ferry_test::captured_log;
using ferry_test::child_process;
using rpc_test::process_group;

// ---- the references that a worker holds

std::mutex held_mutex;
std::vector<rref<tracked>> held;  // guarded by held_mutex

rref<tracked> last_held() {
  const std::lock_guard lock(held_mutex);
  return held.empty() ? rref<tracked>() : held.back();
}
void hold(const rref<tracked>& ref) {
  const std::lock_guard lock(held_mutex);
  held.push_back(ref);
}
void drop_held() {
  std::vector<rref<tracked>> dropped;
  const std::lock_guard lock(held_mutex);
  dropped.swap(held);
}
// The result of using it.
std::string use(const rref<tracked>& ref) {
  try {
    return std::to_string(ref.rpc_sync<&tracked::value>());
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind()));
  }
}
std::string use_held() { return use(last_held()); }
rref<tracked> give_held() { return last_held(); }
void hold_own(int value) { hold(rref<tracked>(std::in_place, value)); }
void pass_held(const std::string& name) { ferry::rpc_sync<hold>(name, last_held()); }
int alive_here() { return tracked::alive(); }
void cut() { ferry_test::break_tcp_connections(); }
int never_ends(const tracked&) {
  std::this_thread::sleep_for(100s);  // its worker is killed, or shut down, before
  return 0;
}

// The calls of each caller on it run one at a time.
std::atomic<bool> stopped_at_door{false};
std::atomic<bool> door_open{false};
struct ordered_tracked : tracked {
  using tracked::tracked;
  int stop_at_door() {
    stopped_at_door = true;
    while (!door_open) std::this_thread::sleep_for(1ms);
    return value();
  }
};
int stop_there(const rref<ordered_tracked>& ref) {
  return ref.rpc_sync<&ordered_tracked::stop_at_door>({.timeout = ferry::no_timeout});
}
std::string use_ordered(const rref<ordered_tracked>& ref) {
  return std::to_string(ref.rpc_sync<&tracked::value>({.timeout = ferry::no_timeout}));
}

void meet() { ferry::barrier({"first", "other"}, 100s); }

const char* const figures[] = {"num_owner_rrefs",      "num_forks",          "num_users", "num_pending_users",
                               "num_pending_children", "num_pending_futures"};
/// Waits until all reference figures of a worker are zero.
void await_nothing(const ferry::worker& worker) {
  for (const char* figure : figures) await_figure(worker, figure, "0");
}
/// Objects are destroyed a little after the figures change.
void await_no_object() {
  const ferry_test::watchdog dog("objects that are destroyed");
  while (tracked::alive() != 0) std::this_thread::yield();
}

// Commands for workers that can no longer be called: "use" uses the held reference; "nothing" returns once all figures
// are zero.
const bool also_obeys = [] {
  rpc_test::obey_also = [](const ferry::worker& self, const std::string& line) -> std::string {
    if (line == "use") return use_held();
    if (line == "drop held") drop_held();
    if (line == "nothing") {
      // A reference in flight may still have arrived.
      const ferry_test::watchdog dog("references that end");
      for (bool done = false; !done;) {
        drop_held();
        done = true;
        for (const char* figure : figures) done = done && self.debug_info(figure) == "0";
        std::this_thread::yield();
      }
      await_no_object();
    }
    return {};
  };
  return true;
}();

// A member of a dynamic group. Arguments: init method, name. Leaves on the command "leave".
const ferry_test::role newcomer("newcomer with references", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc({.name = arguments.at(1),
                                        .rank = ferry::any_rank,
                                        .world_size = ferry::dynamic_world,
                                        .init_method = arguments.at(0),
                                        .rpc_timeout = 100s});
  ferry_test::tell_parent("joined");
  while (ferry_test::ask_parent() != "leave") {
  }
  self.leave();
  ferry_test::tell_parent("done");
  return 0;
});

}  // namespace reference_processes_test

template <>
struct ferry::object_traits<reference_processes_test::ordered_tracked> {
  static constexpr auto execution = ferry::execution::ordered;
};

namespace reference_processes_test {

namespace {

std::string ask(child_process& child, const std::string& line) {
  child.write_line(line);
  return child.read_line();
}

// The number of objects at that worker, or the name of the call's error.
std::string objects_at(const ferry::worker& self, const std::string& name) {
  try {
    return std::to_string(self.rpc_sync<alive_here>(name));
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind()));
  }
}

// The result of that worker using it.
std::string used_by(const ferry::worker& self, const std::string& name, const rref<tracked>& ref) {
  try {
    return self.rpc_sync<use>(name, ref);
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind()));
  }
}

// worker0 is this process; the others take commands.
struct command_group : process_group {
  explicit command_group(int size, const std::string& transport = {}, ferry::timeout lease = 100s)
      : process_group(
            size, {.role = "member that obeys", .transport = transport, .heartbeat_interval = 100ms, .lease = lease}) {
    for (const auto& each : children) REQUIRE(each->read_line() == "joined");
  }
  void kill(int rank) {
    child(rank).kill(SIGKILL);
    CHECK(child(rank).wait() == 128 + SIGKILL);
  }
  /// Checks that no references are left at this worker and those; then all of them leave.
  void end(const std::vector<int>& ranks) {
    for (const int rank : ranks) CHECK(ask(child(rank), "nothing") == "done");
    await_nothing(self);
    await_no_object();
    for (const int rank : ranks) child(rank).write_line("shutdown");
    self.shutdown();
    for (const int rank : ranks) CHECK(child(rank).read_line() == "done");
  }
};

}  // namespace

TEST_CASE("[row 102] [row 108] references between processes are made, fetched, shared, returned and released") {
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    command_group all(3, transport);
    {
      const rref<int> sum = all.self.remote<add>("worker1", 3, 4);
      CHECK(sum.to_here() == 7);
      CHECK(all.self.rpc_sync<fetch>("worker2", sum) == 7);
      CHECK(all.self.rpc_sync<make_there>("worker1", "worker2", 5).to_here() == 5);

      const auto made = all.self.remote<ferry::make<tracked>>("worker1", 8);
      all.self.rpc_sync<hold>("worker2", made);
      all.self.rpc_sync<pass_held>("worker2", "worker1");
      const rref<tracked> back = all.self.rpc_sync<give_held>("worker2");
      CHECK(back == made);
      CHECK(use(back) == "8");
      CHECK(all.self.rpc_sync<alive_here>("worker1") == 1);
    }
    CHECK(all.self.rpc_sync<use_held>("worker2") == "8");
    CHECK(all.self.rpc_sync<use_held>("worker1") == "8");
    for (const int rank : {1, 2}) CHECK(ask(all.child(rank), "drop held") == "done");
    all.end({1, 2});
  }
}

TEST_CASE("the owner releases objects that a killed process referred to") {
  captured_log log;
  command_group all(3);
  {
    const rref<tracked> own(std::in_place, 1);
    all.self.rpc_sync<hold>("worker1", own);
    all.self.rpc_sync<hold>("worker1", all.self.remote<ferry::make<tracked>>("worker2", 2));
    all.self.rpc_sync<hold>("worker2", own);
  }
  CHECK(all.self.rpc_sync<use_held>("worker1") == "2");  // it has been made
  CHECK(all.self.rpc_sync<alive_here>("worker2") == 1);
  all.kill(1);
  while (all.self.rpc_sync<alive_here>("worker2") != 0) std::this_thread::yield();
  CHECK(tracked::alive() == 1);
  CHECK(all.self.rpc_sync<use_held>("worker2") == "1");
  CHECK(ask(all.child(2), "drop held") == "done");
  all.end({2});
}

TEST_CASE("references to the objects of a killed process fail with peer_lost, wherever they are held") {
  captured_log log;
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    command_group all(3, transport);
    {
      const auto made = all.self.remote<ferry::make<tracked>>("worker1", 3);
      const rref<tracked> owned = all.self.rpc_sync<give_held>("worker2");
      CHECK_FALSE(owned);
      all.self.rpc_sync<hold>("worker2", made);
      CHECK(all.self.rpc_sync<use_held>("worker2") == "3");
      const auto waiting = made.rpc_async<never_ends>({.timeout = ferry::no_timeout});
      const auto begun = ferry::clock::now();
      all.kill(1);
      expect_error(errc::peer_lost, "worker1", [&] { (void)waiting.get(); });
      CHECK(ferry::clock::now() - begun < 20s);
      await_figure(all.self, "num_users", "0");
      // Until the reference itself has failed, the call fails.
      const auto ended = [&] {
        try {
          (void)made.rpc_sync<&tracked::value>();
        } catch (const ferry::error& e) {
          return std::string_view(e.what()).find("the owner of the object") != std::string_view::npos;
        }
        return false;
      };
      while (!ended()) std::this_thread::yield();
      expect_error(errc::peer_lost, "worker1", [&] { (void)made.rpc_sync<&tracked::value>(); });
      expect_error(errc::peer_lost, "worker1", [&] { made.notify<&tracked::value>(); });
      expect_error(errc::peer_lost, "worker1", [&] { (void)made.remote<&tracked::value>(); });
      // It cannot be sent on, and such a call leaves no references.
      expect_error(errc::peer_lost, "worker1", [&] { all.self.rpc_sync<hold>("worker2", made); });
      expect_error(errc::peer_lost, "worker1", [&] { (void)all.self.remote<touch>("worker2", made); });
      expect_error(errc::peer_lost, "worker1", [&] { (void)all.self.remote<touch>("worker0", made); });
      std::string used;
      while ((used = all.self.rpc_sync<use_held>("worker2")) == "3") std::this_thread::yield();
      CHECK(used == "peer_lost");
    }
    all.end({2});  // it still has its handle, which no longer counts
  }
}

TEST_CASE("a reference outlives the process that sent it on") {
  captured_log log;
  for (int i = 0; i != 5; ++i) {
    command_group all(3);
    {
      const rref<tracked> own(std::in_place, 4);
      all.self.rpc_sync<hold>("worker1", own);
      if (i == 0) {
        all.self.rpc_sync<pass_held>("worker1", "worker2");
      } else {
        all.self.notify<pass_held>("worker1", "worker2");  // it may be killed at any moment of this
        for (int pause = 0; pause != i * 500; ++pause) std::this_thread::yield();
      }
      all.kill(1);
      const std::string used = all.self.rpc_sync<use_held>("worker2");
      if (i == 0) CHECK(used == "4");
      CHECK((used == "4" || used == "invalid_argument" || used == "reference_deleted"));
    }
    all.end({2});
  }
}

TEST_CASE("sending a reference to a process that is killed before the fork is confirmed leaves no pending transfer") {
  captured_log log;
  command_group all(3);
  {
    const auto made = all.self.remote<ferry::make<tracked>>("worker1", 5);
    made.created().get();
    all.child(1).stop();
    const auto called = all.self.rpc_async<use>({"worker2", {.timeout = ferry::no_timeout}}, made);
    CHECK_FALSE(called.wait_for(300ms));  // the handler waits for worker1
    CHECK(all.self.debug_info("num_pending_children") == "1");
    all.kill(2);
    expect_error(errc::peer_lost, "worker2", [&] { (void)called.get(); });
    await_figure(all.self, "num_pending_children", "0");
    all.child(1).kill(SIGCONT);
    CHECK(use(made) == "5");
  }
  all.end({1});
}

TEST_CASE("a handler that waits for the owner of an argument begins when the owner dies, and its use fails") {
  captured_log log;
  command_group all(3);
  {
    const auto made = all.self.remote<ferry::make<tracked>>("worker1", 6);
    made.created().get();
    all.child(1).stop();
    const auto called = all.self.rpc_async<use>({"worker2", {.timeout = ferry::no_timeout}}, made);
    CHECK_FALSE(called.wait_for(300ms));
    all.kill(1);
    CHECK(called.get() == "peer_lost");
  }
  all.end({2});
}

// Whether the call was answered. A broken connection is allowed.
template <class T>
bool settle(const ferry::future<T>& of) {
  try {
    of.get();
    return true;
  } catch (const ferry::error& e) {
    CHECK_MESSAGE((e.kind() == errc::peer_lost || e.kind() == errc::connect_failed), e.what());
    return false;
  }
}

TEST_CASE("broken connections release no references, and calls and controls in flight settle") {
  captured_log log(ferry::log_level::off);
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    command_group all(3, transport);
    {
      const rref<tracked> own(std::in_place, 7);
      const auto made = all.self.remote<ferry::make<tracked>>("worker1", 7);
      made.created().get();
      for (const auto& each : {own, made}) all.self.rpc_sync<hold>("worker2", each);
      for (int i = 0; i != 50; ++i) {
        std::vector<ferry::future<std::string>> called;
        for (const auto& each : {own, made}) called.push_back(all.self.rpc_async<use>("worker2", each));
        all.self.notify<hold>("worker2", made);
        const auto another = all.self.remote<ferry::make<tracked>>("worker2", i);
        ferry::future<void> cutting;
        if (i % 2 == 0) {
          ferry_test::break_tcp_connections();
        } else {
          cutting = all.self.rpc_async<cut>("worker2");
        }
        for (const auto& each : called) {
          try {
            const std::string used = each.get();
            CHECK((used == "7" || used == "peer_lost" || used == "connect_failed"));
          } catch (const ferry::error& e) {
            CHECK_MESSAGE((e.kind() == errc::peer_lost || e.kind() == errc::connect_failed), e.what());
          }
        }
        if (cutting.valid()) settle(cutting);  // by then it has cut, or is about to cut, all its connections
      }
      CHECK(made.rpc_sync<&tracked::value>() == 7);
      CHECK(tracked::alive() == 1);
      CHECK(all.self.rpc_sync<alive_here>("worker1") == 1);
      std::string used = "peer_lost";
      while (used == "peer_lost") {
        const auto again = all.self.rpc_async<use_held>("worker2");
        if (settle(again)) used = again.get();
      }
      CHECK(used == "7");
    }
    all.end({2, 1});
  }
}

TEST_CASE("a process that sleeps for longer than its lease loses its objects, and its references") {
  captured_log log;
  command_group all(3, "tcp", 5s);
  {
    const rref<tracked> own(std::in_place, 9);
    all.self.rpc_sync<hold>("worker1", own);
    const auto made = all.self.remote<ferry::make<tracked>>("worker1", 8);
    all.self.rpc_sync<hold>("worker2", made);
    all.child(1).stop();
    expect_error(errc::peer_lost, "worker1", [&] { (void)made.rpc_sync<&tracked::value>({.timeout = 60s}); });
    std::string used;
    while ((used = all.self.rpc_sync<use_held>("worker2")) == "8") std::this_thread::yield();
    CHECK(used == "peer_lost");
    await_figure(all.self, "num_forks", "0");
    all.child(1).kill(SIGCONT);
    while ((used = ask(all.child(1), "use")) == "peer_lost") std::this_thread::yield();
    CHECK(used == "fenced");
  }
  CHECK(ask(all.child(1), "shutdown") == "fenced");
  all.end({2});
}

TEST_CASE("references to a killed worker do not refer to the one that took its name") {
  captured_log log;
  const ferry_test::watchdog dog("references in a dynamic group");
  const ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  const auto start = [&] {
    auto child = std::make_unique<child_process>(
        ferry_test::child_options{.role = "newcomer with references", .arguments = {meeting, "other"}});
    REQUIRE(child->read_line() == "joined");
    return child;
  };
  ferry::worker self = ferry::init_rpc(
      {.name = "first", .rank = 0, .world_size = ferry::dynamic_world, .init_method = meeting, .rpc_timeout = 100s});
  {
    const rref<tracked> own(std::in_place, 1);
    auto child = start();
    auto old = self.remote<ferry::make<tracked>>("other", 1);
    CHECK(old.rpc_sync<&tracked::value>() == 1);
    self.rpc_sync<hold>("other", own);
    await_figure(self, "num_forks", "1");
    child->kill(SIGKILL);
    CHECK(child->wait() == 128 + SIGKILL);
    child = start();
    await_figure(self, "num_forks", "0");
    expect_error(errc::peer_lost, "", [&] { (void)old.rpc_sync<&tracked::value>(); });
    while (objects_at(self, "other") != "0") std::this_thread::yield();  // it must learn of the new one first
    auto made = self.remote<ferry::make<tracked>>("other", 2);
    CHECK(made.rpc_sync<&tracked::value>() == 2);
    CHECK(self.rpc_sync<alive_here>("other") == 1);
    expect_error(errc::peer_lost, "", [&] { (void)old.rpc_sync<&tracked::value>(); });

    // The same for a worker that leaves gracefully.
    self.rpc_sync<hold>("other", own);
    await_figure(self, "num_forks", "1");
    const std::size_t logged = log.size();
    CHECK(ask(*child, "leave") == "done");
    CHECK(child->wait() == 0);
    await_figure(self, "num_forks", "0");
    expect_error(errc::peer_lost, "", [&] { (void)made.rpc_sync<&tracked::value>(); });
    CHECK(log.size() == logged);
  }
  await_nothing(self);
  await_no_object();
  self.leave();
}

TEST_CASE("late controls of a killed worker do not count for the one that took its name") {
  const ferry_test::watchdog dog("late controls of a killed worker");
  const ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  const auto start = [&] {
    auto child = std::make_unique<child_process>(
        ferry_test::child_options{.role = "newcomer with references", .arguments = {meeting, "other"}});
    REQUIRE(child->read_line() == "joined");
    return child;
  };
  const auto config = [&](const char* name, int rank) {
    return ferry::worker_config{
        .name = name, .rank = rank, .world_size = ferry::dynamic_world, .init_method = meeting, .rpc_timeout = 100s};
  };
  using backend = ferry::faulty<ferry::native>;
  auto options = ferry::construct_rpc_backend_options<backend>();
  ferry::worker self = ferry::init_rpc<backend>(config("first", 0), options);
  ferry::worker second = ferry::init_rpc(config("second", ferry::any_rank));
  {
    auto child = start();
    const rref<tracked> own = self.make_rref<tracked>(std::in_place, 1);
    self.rpc_sync<hold>("second", own);
    // The owner gets the other worker's control as a holder after that worker's death, behind three messages of its
    // successor.
    constexpr int behind = 3;
    options.faults.add({.action = ferry::fault_action::reorder,
                        .method = "ferry/references",
                        .peer = "other",
                        .direction = ferry::fault_direction::receiving,
                        .delay = 100s,
                        .behind = behind,
                        .limit = 1});
    const auto handed = second.rpc_async<hold>("other", last_held());
    while (options.faults.counters().reordered == 0) std::this_thread::yield();
    child->kill(SIGKILL);
    CHECK(child->wait() == 128 + SIGKILL);
    child = start();
    for (int i = 0; i != behind; ++i) {
      while (used_by(self, "other", own) != "1") std::this_thread::yield();  // it must learn of the new one first
    }
    self.rpc_sync<drop_held>("second");
    await_figure(self, "num_forks", "0");
    CHECK(ask(*child, "leave") == "done");
    CHECK(child->wait() == 0);
  }
  await_nothing(self);
  second.leave();
  self.leave();
}

// A dynamic group of "first", which is this process, and "other", which is killed and replaced by a successor.
struct group_with_successors {
  ferry_test::watchdog dog{"successors in a dynamic group"};
  ferry_test::temporary_directory directory;
  std::string meeting = "file://" + directory.file("store");
  ferry::fault_injector faults;
  ferry::worker self;
  std::unique_ptr<child_process> other;
  std::atomic<bool> lost{false};

  group_with_successors() {
    using backend = ferry::faulty<ferry::native>;
    auto options = ferry::construct_rpc_backend_options<backend>();
    options.faults = faults;
    self = ferry::init_rpc<backend>(
        {.name = "first", .rank = 0, .world_size = ferry::dynamic_world, .init_method = meeting, .rpc_timeout = 100s},
        options);
    self.on_peer_lost([this](const ferry::worker_info&, const std::string&) { lost = true; });
    start();
  }
  ~group_with_successors() { self.shutdown(false); }
  group_with_successors(const group_with_successors&) = delete;
  group_with_successors& operator=(const group_with_successors&) = delete;

  /// Returns once this process knows the new one. Nothing is sent to it before the old one is known to be dead.
  void replace_other() {
    const ferry::worker_info before = self.get_worker_info("other");
    other->kill(SIGKILL);
    CHECK(other->wait() == 128 + SIGKILL);
    while (!lost) std::this_thread::sleep_for(1ms);
    lost = false;
    start();
    while (objects_at(self, "other") != "0") std::this_thread::yield();
    CHECK(self.get_worker_info("other") == before);
  }
  void end() {
    CHECK(ask(*other, "leave") == "done");
    CHECK(other->wait() == 0);
    await_nothing(self);
    self.leave();
  }

 private:
  void start() {
    other = std::make_unique<child_process>(
        ferry_test::child_options{.role = "newcomer with references", .arguments = {meeting, "other"}});
    REQUIRE(other->read_line() == "joined");
  }
};

TEST_CASE("at an ordered object a worker does not wait behind the calls of a killed one with the same id") {
  captured_log log;
  group_with_successors group;
  {
    const rref<ordered_tracked> own = group.self.make_rref<ordered_tracked>(std::in_place, 5);
    const auto stopped = group.self.rpc_async<stop_there>({"other", {.timeout = ferry::no_timeout}}, own);
    while (!stopped_at_door) std::this_thread::yield();
    group.replace_other();
    CHECK(group.self.rpc_sync<use_ordered>("other", own) == "5");
    expect_error(errc::peer_lost, "other", [&] { (void)stopped.get(); });
    door_open = true;
  }
  group.end();
}

TEST_CASE("a killed worker's late gather message does not disturb the rounds of the one that took its name") {
  captured_log log;
  group_with_successors group;
  const auto together = [&] {
    const auto there = group.self.rpc_async<meet>("other");
    group.self.barrier({"first", "other"}, 100s);
    there.get();
  };
  together();
  group.replace_other();  // the round of a first gather is not known to others
  group.faults.add({.action = ferry::fault_action::reorder,
                    .method = "ferry/gather",
                    .peer = "other",
                    .direction = ferry::fault_direction::receiving,
                    .delay = 100s,
                    .behind = 4,
                    .limit = 1});
  const auto arriving = group.self.rpc_async<meet>({"other", {.timeout = ferry::no_timeout}});
  while (group.faults.counters().reordered == 0) std::this_thread::yield();
  group.replace_other();
  expect_error(errc::peer_lost, "other", [&] { arriving.get(); });
  for (int i = 0; i != 5; ++i) together();
  group.end();
}

TEST_CASE("the references of a process that shuts down at once are released, and its objects are lost") {
  captured_log log;
  command_group all(3);
  {
    const rref<tracked> own(std::in_place, 1);
    all.self.rpc_sync<hold>("worker1", own);
    const auto made = all.self.remote<ferry::make<tracked>>("worker1", 2);
    CHECK(use(made) == "2");
    all.self.rpc_sync<hold>("worker2", made);
    CHECK(ask(all.child(1), "leave") == "done");
    CHECK(all.child(1).wait() == 0);
    await_figure(all.self, "num_forks", "0");
    CHECK(use(made) == "peer_lost");
    std::string used;
    while ((used = all.self.rpc_sync<use_held>("worker2")) == "2") std::this_thread::yield();
    CHECK(used == "peer_lost");
    CHECK(tracked::alive() == 1);
  }
  all.end({2});
}

// ---- regressions found by such groups, in one process

namespace {

struct faulty_pair {
  ferry::fault_injector faults;
  ferry_test::watchdog dog{"a pair with faults"};
  ferry_test::temporary_directory directory;
  std::vector<ferry::worker> workers{2};

  faulty_pair() {
    using backend = ferry::faulty<ferry::native>;
    auto options = ferry::construct_rpc_backend_options<backend>();
    options.faults = faults;
    ferry_test::run_together({[&] { start(0, options); }, [&] { start(1, options); }});
  }
  ~faulty_pair() {
    ferry_test::run_together({[&] { workers[0].shutdown(); }, [&] { workers[1].shutdown(); }});
  }

 private:
  template <class Options>
  void start(int rank, const Options& options) {
    workers[static_cast<std::size_t>(rank)] =
        ferry::init_rpc<ferry::faulty<ferry::native>>({.name = ferry_test::worker_name(rank),
                                                       .rank = rank,
                                                       .world_size = 2,
                                                       .init_method = "file://" + directory.file("store"),
                                                       .rpc_timeout = 100s},
                                                      options);
  }
};

}  // namespace

TEST_CASE("calls on an object whose creation is lost end, although no reference to it is left") {
  captured_log log;
  faulty_pair both;
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    both.faults.add({.kinds = ferry::message_kinds::request, .method = "*references_test::add*", .limit = 1});
    ferry::future<int> waiting;
    {
      const rref<int> lost = both.workers[0].remote<add>({where, {.timeout = 300ms}}, 1, 2);
      waiting = lost.rpc_async<plus>({.timeout = ferry::no_timeout}, 1);
    }
    expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { (void)waiting.get(); });
    for (const auto& worker : both.workers) await_nothing(worker);
  }
  both.faults.clear();
}

TEST_CASE("a call that makes an object and arrives twice makes it once, and succeeds") {
  captured_log log;
  faulty_pair both;
  both.faults.add({.action = ferry::fault_action::duplicate,
                   .kinds = ferry::message_kinds::request,
                   .direction = ferry::fault_direction::both});
  for (const char* where : {"worker1", "worker0"}) {
    for (int i = 0; i != 100; ++i) {
      const auto made = both.workers[0].remote<ferry::make<tracked>>(where, i);
      made.created().get();
      CHECK(made.rpc_sync<&tracked::value>() == i);
    }
  }
  both.faults.clear();
  for (const auto& worker : both.workers) await_nothing(worker);
  await_no_object();
}

}  // namespace reference_processes_test

// References to objects of workers that leave or have left, where others learn of it early, late, or never.

#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/faulty.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "gate.hpp"
#include "processes.hpp"
#include "references.hpp"
#include "tests/rpc/worker/dynamic_group.hpp"

namespace reference_departures_test {

using namespace std::chrono_literals;
using namespace references_test;
using ferry::fault_action;
using ferry::fault_direction;
using ferry::rref;
using ferry_test::captured_log;
using ferry_test::worker_name;

ferry_test::gate door;
void stay() { door.pass(); }
void nothing() {}

// The result of using the reference in a handler.
std::string use(const rref<tracked>& ref) {
  const std::string confirmed = ref.confirmed_by_owner() ? "confirmed, " : "";
  try {
    return confirmed + std::to_string(ref.rpc_sync<&tracked::value>());
  } catch (const ferry::error& e) {
    return confirmed + std::string(ferry::errc_name(e.kind()));
  }
}
std::string use_at(const std::string& where, const rref<tracked>& ref) {
  return ferry::rpc_sync<use>({where, {.timeout = ferry::no_timeout}}, ref);
}

std::mutex held_mutex;
std::vector<rref<tracked>> held;  // guarded by held_mutex
void hold(const rref<tracked>& ref) {
  const std::lock_guard lock(held_mutex);
  held.push_back(ref);
}
void drop_held() {
  std::vector<rref<tracked>> dropped;
  const std::lock_guard lock(held_mutex);
  dropped.swap(held);
}

using faulty_native = ferry::faulty<ferry::native>;

ferry::worker start(const ferry::worker_config& config, const ferry::fault_injector& faults) {
  auto options = ferry::construct_rpc_backend_options<faulty_native>(config.options());
  options.faults = faults;
  return ferry::init_rpc<faulty_native>(config, options);
}

// The next call of `use` from that worker is delivered after the next message from or to it.
void hold_back_use(ferry::fault_injector& faults, const std::string& from) {
  faults.add({.action = fault_action::reorder,
              .kinds = ferry::message_kinds::request,
              .method = "*reference_departures_test::use*",
              .peer = from,
              .direction = fault_direction::receiving,
              .delay = 100s,
              .limit = 1});
}

// "other" leaves, but only once the door is open. "first" gets injected faults.
struct departing_group {
  ferry_test::watchdog dog{"references of a worker that leaves"};
  ferry_test::temporary_directory directory;
  ferry::fault_injector faults;
  ferry::worker first = start(config("first"), faults);
  ferry::worker second = ferry::init_rpc(config("second"));
  ferry::worker other = ferry::init_rpc(config("other"));
  dynamic_group_test::events events{first};
  ferry::future<void> staying;

  departing_group() {
    door.reset();
    staying = other.rpc_async<stay>({"second", {.timeout = ferry::no_timeout}});
  }
  ~departing_group() {
    second.leave();
    first.leave();
  }
  std::future<void> begin_to_leave() {
    return std::async(std::launch::async, [this] { other.leave(); });
  }

 private:
  [[nodiscard]] ferry::worker_config config(const std::string& name) const {
    ferry::worker_config result = dynamic_group_test::config_of("file://" + directory.file("store"), name);
    result.lease = 100s;
    return result;
  }
};

TEST_CASE("a reference that arrives when its owner is known to be leaving has failed, and blocks no handler") {
  for (const bool had_references : {false, true}) {
    CAPTURE(had_references);
    captured_log log;
    departing_group all;
    {
      rref<tracked> before;
      if (had_references) before = all.first.make_rref<tracked>(std::in_place, 1);
      const rref<tracked> object = all.other.make_rref<tracked>(std::in_place, 2);
      hold_back_use(all.faults, "second");
      const auto used = all.other.rpc_async<use_at>({"second", {.timeout = ferry::no_timeout}}, "first", object);
      while (all.faults.counters().reordered == 0) std::this_thread::yield();
      auto leaving = all.begin_to_leave();
      (void)all.events.up_to("other left");
      all.first.rpc_sync<nothing>("second");
      CHECK(used.get() == "peer_lost");
      await_figure(all.first, "num_users", "0");  // the owner has registered the fork, and its end
      door.open();
      leaving.get();
    }
    CHECK(log.size() == 0);
  }
}

TEST_CASE("a leaving worker learns that references it sent on have arrived") {
  captured_log log;
  departing_group all;
  {
    const auto object = all.other.remote<ferry::make<tracked>>("second", 3);
    all.faults.add({.action = fault_action::fail,
                    .kinds = ferry::message_kinds::request,
                    .method = "ferry/references",
                    .peer = "other"});
    all.other.rpc_sync<hold>("first", object);
    auto leaving = all.begin_to_leave();
    (void)all.events.up_to("other left");
    CHECK(all.other.debug_info("num_pending_children") == "1");
    all.faults.clear();
    await_figure(all.other, "num_pending_children", "0");
    door.open();
    leaving.get();
  }
  CHECK(log.size() == 0);
  CHECK(tracked::alive() == 1);
  drop_held();
  await([] { return tracked::alive() == 0; });
}

namespace {

// A static group. worker0, with injected faults, and worker2 are in this process; worker1 is a process that takes
// commands.
struct static_group {
  ferry_test::watchdog dog{"references to an owner that was never reached"};
  ferry_test::temporary_directory directory;
  std::string transport;
  ferry::fault_injector faults;
  std::unique_ptr<ferry_test::child_process> owner;
  ferry::worker self;
  ferry::worker parent;

  explicit static_group(std::string by) : transport(std::move(by)) {
    owner = std::make_unique<ferry_test::child_process>(ferry_test::child_options{
        .role = "member that obeys", .arguments = {meeting(), "1", "3", "100", "100000", transport}});
    ferry_test::run_together({[&] { self = start(config(0), faults); }, [&] { parent = ferry::init_rpc(config(2)); }});
    REQUIRE(owner->read_line() == "joined");
  }
  ~static_group() {
    if (owner) owner->write_line("shutdown");
    ferry_test::run_together({[&] { self.shutdown(); }, [&] { parent.shutdown(); }});
  }
  /// worker2 sends the reference in a call to worker0, which is held back there.
  ferry::future<std::string> send_to_self(const rref<tracked>& object) {
    hold_back_use(faults, "worker2");
    auto used = parent.rpc_async<use>({"worker0", {.timeout = ferry::no_timeout}}, object);
    while (faults.counters().reordered == 0) std::this_thread::yield();
    return used;
  }
  void let_it_arrive() { self.rpc_sync<nothing>("worker2"); }
  void let_owner_leave() {
    owner->write_line("leave");
    CHECK(owner->read_line() == "done");
    CHECK(owner->wait() == 0);
    owner.reset();
  }

 private:
  [[nodiscard]] std::string meeting() const { return "file://" + directory.file("store"); }
  [[nodiscard]] ferry::worker_config config(int rank) const {
    ferry::worker_config result{.name = worker_name(rank),
                                .rank = rank,
                                .world_size = 3,
                                .init_method = meeting(),
                                .rpc_timeout = 100s,
                                .heartbeat_interval = 100ms,
                                .lease = 100s};
    result.transports = {transport};
    return result;
  }
};

}  // namespace

TEST_CASE("a reference to an object of a worker that left before it was ever reached fails, and blocks no handler") {
  for (const char* transport : {"shm", "unix", "tcp"}) {
    CAPTURE(transport);
    captured_log log;
    static_group all(transport);
    {
      const auto object = all.parent.remote<ferry::make<tracked>>("worker1", 4);
      object.created().get();
      const auto used = all.send_to_self(object);
      all.let_owner_leave();
      all.let_it_arrive();
      CHECK(used.get() == "peer_lost");
    }
    await_figure(all.self, "num_users", "0");
    await_figure(all.parent, "num_pending_children", "0");
  }
}

TEST_CASE("a reference to an object of a worker that is only suspended waits for that worker") {
  captured_log log;
  static_group all("tcp");
  {
    const auto object = all.parent.remote<ferry::make<tracked>>("worker1", 5);
    object.created().get();
    const auto used = all.send_to_self(object);
    all.faults.add({.action = fault_action::fail,
                    .kinds = ferry::message_kinds::request,
                    .method = "ferry/references",
                    .peer = "worker1"});
    all.let_it_arrive();
    constexpr std::uint64_t many = 8;
    while (all.faults.counters().failed < many) std::this_thread::yield();
    all.owner->stop();
    all.faults.clear();
    while (calls_to(all.self, 1) < 2) std::this_thread::yield();  // the suspended worker did not answer one of them
    all.owner->kill(SIGCONT);
    CHECK(used.get() == "confirmed, 5");
  }
}

}  // namespace reference_departures_test

// Watching a group without being a member of it.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/rpc/group_observer.hpp>
#include <ferry/store/rendezvous.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "temporary_directory.hpp"
#include "tests/rpc/worker/process_group.hpp"
#include "watchdog.hpp"

#include "backend/links/control.hpp"
#include "backend/observers/observer_messages.hpp"
#include "rpc/diagnostics/snapshot_archive.hpp"

namespace observer_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::group_observer;
using ferry::observed_worker;
using ferry_test::captured_log;
using ferry_test::cluster;
using ferry_test::gate;
using ferry_test::temporary_directory;
using rpc_test::process_group;

gate hold;
void wait_here() { hold.pass(); }
int plus_two(int value) { return value + 2; }

namespace {

namespace d = ferry::detail;
using namespace observer_test;

// A group of which a test knows where it meets.
struct known_group {
  explicit known_group(int size, bool dynamic = false, const std::function<void(ferry::worker_config&)>& change = {}) {
    std::vector<ferry::worker_config> configs(static_cast<std::size_t>(size));
    for (int rank = 0; rank != size; ++rank) {
      ferry::worker_config& config = configs[static_cast<std::size_t>(rank)];
      config.name = ferry_test::worker_name(rank);
      config.rank = rank;
      config.world_size = dynamic ? ferry::dynamic_world : size;
      config.init_method = meeting;
      if (change) change(config);
    }
    for (ferry_test::started& each : ferry_test::start_workers(configs)) {
      if (each.error) std::rethrow_exception(each.error);
      workers.push_back(std::move(each.worker));
    }
  }
  known_group(const known_group&) = delete;
  known_group& operator=(const known_group&) = delete;
  ~known_group() {
    std::vector<std::function<void()>> ends;
    for (ferry::worker& each : workers) ends.emplace_back([&each] { each.shutdown(); });
    ferry_test::run_together(ends);
  }

  const temporary_directory directory;
  const ferry_test::watchdog limit{"a group that is observed"};
  const std::string meeting = "file://" + directory.file("store");
  std::vector<ferry::worker> workers;
};

const observed_worker& named(const std::vector<observed_worker>& all, const std::string& name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.who.name() == name; });
  REQUIRE(found != all.end());
  return *found;
}

}  // namespace

TEST_CASE("an observer sees who is in a static group, and what each worker does") {
  known_group group(3);
  group_observer seen({.init_method = group.meeting});
  CHECK(seen.kind().starts_with("static 3, "));
  const auto workers = seen.workers();
  REQUIRE(workers.size() == 3);
  for (int rank = 0; rank != 3; ++rank) {
    const auto& each = workers[static_cast<std::size_t>(rank)];
    CHECK(each.who.id() == rank);
    CHECK(each.who.name() == ferry_test::worker_name(rank));
    CHECK(each.lost.empty());
    CHECK_FALSE(each.addresses.empty());
  }

  const auto held = group.workers[0].rpc_async<wait_here>("worker2");
  hold.await_arrivals(1);
  const auto caller = seen.snapshot(workers[0]);
  const auto callee = seen.snapshot(workers[2]);
  CHECK(caller.worker.name() == "worker0");
  CHECK(caller.incarnation == workers[0].incarnation);
  CHECK(caller.process == ::getpid());
  REQUIRE(caller.pending_calls.size() == 1);
  REQUIRE(callee.served_calls.size() == 1);
  CHECK(caller.pending_calls[0].id == callee.served_calls[0].id);
  REQUIRE(caller.routes.size() == 1);
  CHECK(caller.routes[0].peer.name() == "worker2");
  CHECK_FALSE(caller.routes[0].transport.empty());
  CHECK(caller.pending_calls[0].peer.name() == "worker2");
  CHECK(caller.pending_calls[0].phase == ferry::call_phase::waiting_for_reply);
  CHECK_FALSE(caller.pending_calls[0].until.is_never());
  CHECK(callee.served_calls[0].phase == ferry::served_phase::running);
  CHECK(callee.served_calls[0].method.find("wait_here") != std::string::npos);
  CHECK(std::any_of(caller.events.begin(), caller.events.end(),
                    [](const ferry::recorded_event& each) { return each.event == "call_started"; }));
  CHECK(seen.snapshot(workers[0], false).events.empty());
  CHECK(ferry::to_json(caller).find(R"("call": ")") != std::string::npos);
  // One clock: this process's.
  const ferry::observed_clock clock = seen.clock_of(workers[1]);
  CHECK(clock.uncertainty.count() > 0);
  CHECK(clock.offset <= clock.uncertainty);
  CHECK(-clock.offset <= clock.uncertainty);
  hold.open();
  held.get();
  hold.reset();
}

TEST_CASE("an observer of a dynamic group sees who comes and goes") {
  known_group group(2, true);
  group_observer seen({.init_method = group.meeting});
  CHECK(seen.kind().starts_with("dynamic, "));
  CHECK(seen.workers().size() == 2);
  {
    ferry::worker third = ferry::init_rpc(
        {.name = "third", .rank = ferry::any_rank, .world_size = ferry::dynamic_world, .init_method = group.meeting});
    const auto three = seen.workers();
    REQUIRE(three.size() == 3);
    CHECK(seen.snapshot(named(three, "third")).worker.name() == "third");
    third.leave();
  }
  const auto after = seen.workers();
  REQUIRE(after.size() == 3);
  CHECK(named(after, "third").lost == "it is no longer a member of the group");
  expect_error(errc::peer_lost, "third", [&] { (void)seen.snapshot(named(after, "third")); });
  CHECK(seen.snapshot(named(after, "worker1")).worker.name() == "worker1");
}

TEST_CASE("a place where no group has met is no group") {
  const temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  expect_error(errc::unknown_worker, "no such file", [&] { group_observer({.init_method = meeting}); });
  CHECK_FALSE(std::filesystem::exists(directory.file("store")));
  const auto store = ferry::rendezvous({.init_method = meeting, .dynamic = true, .any_rank = true}).store;
  store->set("another", "program");
  expect_error(errc::unknown_worker, "no group of workers has met in the",
               [&] { group_observer({.init_method = meeting}); });
}

TEST_CASE("an observer needs the secret of the group") {
  if (!ferry::authentication_available()) return;
  const captured_log quiet;
  known_group group(2, false, [](ferry::worker_config& config) {
    config.secret = "the right one";
    config.transports = {"tcp"};
  });
  group_observer right({.init_method = group.meeting, .secret = "the right one"});
  CHECK(right.snapshot(right.workers()[1]).worker.name() == "worker1");
  // The store is a file here, which the user of the group may read.
  group_observer wrong({.init_method = group.meeting, .secret = "another one"});
  expect_error(errc::authentication_failed, "worker1", [&] { (void)wrong.snapshot(wrong.workers()[1]); });
  group_observer none({.init_method = group.meeting});
  expect_error(errc::authentication_failed, "secret", [&] { (void)none.snapshot(none.workers()[1]); });
}

TEST_CASE("a worker has no more observers than it allows") {
  const captured_log quiet;
  known_group group(2, false, [](ferry::worker_config& config) { config.max_observers = config.rank; });
  group_observer first({.init_method = group.meeting});
  const auto workers = first.workers();
  expect_error(errc::resource_exhausted, "max_observers", [&] { (void)first.snapshot(workers[0]); });
  CHECK(first.snapshot(workers[1]).worker.name() == "worker1");
  group_observer second({.init_method = group.meeting});
  expect_error(errc::resource_exhausted, "has 1 observers", [&] { (void)second.snapshot(workers[1]); });
  expect_error(errc::invalid_argument, "max_observers",
               [&] { known_group bad(1, false, [](ferry::worker_config& config) { config.max_observers = -1; }); });
}

TEST_CASE("a question that no worker knows is refused, and the next one answered") {
  known_group group(1);
  group_observer seen({.init_method = group.meeting});
  const auto self = seen.workers().at(0);
  expect_error(errc::unknown_method, "answers no question", [&] { (void)seen.ask(self, "what is the meaning of it"); });
  CHECK(seen.snapshot(self).worker.name() == "worker0");
}

TEST_CASE("a group ends while it is observed, and is observed while it ends") {
  std::unique_ptr<group_observer> seen;
  observed_worker first;
  {
    known_group group(2);
    seen = std::make_unique<group_observer>(ferry::observer_options{.init_method = group.meeting, .limit = 5s});
    first = seen->workers().at(0);
    std::future<void> leaves = std::async(std::launch::async, [&] { group.workers[0].shutdown(); });
    // worker0 waits for worker1, which has not come to the shutdown.
    CHECK(seen->snapshot(first).worker.name() == "worker0");
    group.workers[1].shutdown();
    leaves.get();
  }
  expect_error(errc::peer_lost, "worker0", [&] { (void)seen->snapshot(first); });
  CHECK_NOTHROW((void)seen->workers());
}

TEST_CASE("many threads may ask at once") {
  known_group group(2);
  group_observer seen({.init_method = group.meeting});
  const auto workers = seen.workers();
  std::vector<std::function<void()>> asking;
  for (int i = 0; i != 4; ++i) {
    asking.emplace_back([&, i] {
      for (int k = 0; k != 10; ++k) {
        const auto& whom = workers[static_cast<std::size_t>((i + k) % 2)];
        if (seen.snapshot(whom, k % 2 == 0).worker != whom.who) throw std::logic_error("the answer of another worker");
      }
    });
  }
  asking.emplace_back([&] {
    for (int k = 0; k != 100; ++k) (void)group.workers[0].rpc_sync<plus_two>("worker1", k);
  });
  CHECK_NOTHROW(ferry_test::run_together(asking));
}

TEST_CASE("a stopped worker is told from a killed one, and neither holds up the others") {
  process_group group(3, {.role = "member that obeys", .heartbeat_interval = 100ms, .lease = 1s});
  group_observer seen({.init_method = group.meeting(), .limit = 2s});
  const auto workers = seen.workers();
  CHECK(seen.snapshot(named(workers, "worker1")).process == group.child(1).pid());
  group.child(1).stop();
  expect_error(errc::rpc_timeout, "worker1", [&] { (void)seen.snapshot(named(workers, "worker1")); });
  CHECK(seen.snapshot(named(workers, "worker2")).worker.name() == "worker2");
  CHECK(group.self.rpc_sync<plus_two>("worker2", 1) == 3);
  group.child(2).kill();
  (void)group.child(2).wait();
  expect_error(errc::peer_lost, "worker2", [&] { (void)seen.snapshot(named(workers, "worker2")); });
  group.child(1).kill();
  (void)group.child(1).wait();
  // worker0 has it declared dead: the store tells the observer.
  const ferry_test::watchdog limit("the loss in the store");
  while (named(seen.workers(), "worker2").lost.empty()) std::this_thread::yield();
  CHECK(seen.snapshot(named(workers, "worker0")).worker.name() == "worker0");
  group.self.shutdown(false);
}

// ---------------------------------------------------------------- what observers may not do

namespace {

struct raw_observer final : ferry::connection_receiver {
  std::promise<ferry::inbound_message> next;
  std::promise<std::string> end;

  void on_message(ferry::connection&, ferry::inbound_message&& message) noexcept override {
    if (message.header.code == static_cast<std::uint32_t>(d::control_code::answer)) next.set_value(std::move(message));
  }
  void on_closed(ferry::connection&, std::exception_ptr reason) noexcept override {
    try {
      std::rethrow_exception(reason);
    } catch (const std::exception& e) {
      end.set_value(e.what());
    }
  }
  [[nodiscard]] std::size_t expected_messages() const noexcept override { return 1; }
};

// To the first worker of a group, over its tcp address.
std::shared_ptr<ferry::connection> connect_raw(const known_group& group,
                                               const std::shared_ptr<raw_observer>& receiver) {
  group_observer seen({.init_method = group.meeting});
  const observed_worker whom = seen.workers().at(0);
  const auto opened = ferry::transport_traits<ferry::tcp>::open(*ferry::shared_reactor());
  const auto store = ferry::rendezvous({.init_method = group.meeting, .dynamic = true, .any_rank = true}).store;
  std::promise<ferry::connect_result> result;
  const auto address = std::find_if(whom.addresses.begin(), whom.addresses.end(),
                                    [&](const std::string& each) { return opened->understands(each); });
  REQUIRE(address != whom.addresses.end());
  opened->connect(*address,
                  {.group = store->get("ferry/0/attempt/0/group"),
                   .name = "stranger",
                   .id = {},
                   .incarnation = ferry::incarnation_id::random(),
                   .target = whom.who.name(),
                   .features = ferry::feature_observer},
                  {}, ferry::deadline::after(10s),
                  [&](ferry::connect_result found) { result.set_value(std::move(found)); });
  ferry::connect_result found = result.get_future().get();
  REQUIRE(found.opened);
  found.opened->start(receiver);
  return found.opened;
}

}  // namespace

TEST_CASE("an observer that calls, asks too much or talks nonsense is closed, and the worker goes on") {
  const captured_log quiet;
  known_group group(2);
  const auto send_and_end = [&](ferry::outgoing_message message) {
    const auto receiver = std::make_shared<raw_observer>();
    const auto link = connect_raw(group, receiver);
    message.finish();
    link->send(std::move(message));
    (void)receiver->end.get_future().get();
  };
  ferry::outgoing_message request;
  request.header.kind = ferry::frame_kind::request;
  request.header.call_id = 1;
  send_and_end(std::move(request));
  send_and_end(d::question_text{"snapshot", std::string(100'000, 'x')}.encode(1));
  ferry::outgoing_message nonsense;
  nonsense.header.kind = ferry::frame_kind::control;
  nonsense.header.code = static_cast<std::uint32_t>(d::control_code::question);
  nonsense.bytes.append("\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
  send_and_end(std::move(nonsense));

  // What is no question is of a later version.
  const auto receiver = std::make_shared<raw_observer>();
  const auto link = connect_raw(group, receiver);
  link->send(d::control_message(d::control_code::heartbeat));
  link->send(d::question_text{"clock", ""}.encode(7));
  const ferry::inbound_message answer = receiver->next.get_future().get();
  CHECK(answer.header.call_id == 7);
  CHECK(d::answer_text::decode(answer, {}).code == errc{});
  link->close(ferry::make_error(errc::connection_lost, "over"));
  (void)receiver->end.get_future().get();
  CHECK(group.workers[0].rpc_sync<plus_two>("worker1", 1) == 3);
}

// ---------------------------------------------------------------- the form on the wire

TEST_CASE("a snapshot is the same after the wire, and damaged ones are refused") {
  ferry::worker_snapshot whole;
  whole.reason = "asked for";
  whole.worker = ferry::worker_info("worker3", 3);
  whole.incarnation = {17};
  whole.process = 4711;
  whole.process_mark = 99;
  whole.time = std::chrono::system_clock::time_point(1234567890123456us);
  whole.steady_ns = 5'000'000'000;
  whole.pending_calls.push_back({.id = 9,
                                 .method = "f",
                                 .peer = ferry::worker_info("worker4", 4),
                                 .phase = ferry::call_phase::queued,
                                 .age = 3s,
                                 .until = ferry::deadline(ferry::clock::time_point(7s)),
                                 .bytes = 12,
                                 .transport = "tcp",
                                 .route = "tcp 10.0.0.1:1",
                                 .silence = 20ms});
  whole.pending_calls.push_back({.id = 10, .method = "g"});
  whole.served_calls.push_back({.id = 11, .method = "h", .phase = ferry::served_phase::later, .one_way = true});
  whole.traffic.push_back({.peer = ferry::worker_info("worker4", 4), .calls = 1, .bytes_sent = 2});
  whole.routes.push_back({ferry::worker_info("worker4", 4), "tcp", "tcp 10.0.0.1:1"});
  whole.debug_info = {{"a.b", "1"}};
  whole.events_so_far = 100;
  whole.events.push_back({.number = 99,
                          .steady_ns = 4,
                          .event = "call_failed",
                          .call = 9,
                          .method = "f",
                          .code = errc::peer_lost,
                          .text = "x"});

  const ferry::byte_buffer bytes = d::encode_snapshot(whole);
  const ferry::worker_snapshot copy = d::decode_snapshot(bytes.bytes(), {});
  CHECK(ferry::to_json(copy) == ferry::to_json(whole));
  CHECK(copy.pending_calls[1].until.is_never());
  CHECK(ferry::to_json(whole).find(R"("time_left_ns": 2000000000)") != std::string::npos);

  const captured_log quiet;
  for (std::size_t cut = 0; cut != bytes.size(); ++cut) {
    CHECK_THROWS_AS((void)d::decode_snapshot(bytes.bytes().first(cut), {}), ferry::error);
  }
  CHECK(copy.process_mark == 99);
  const auto refuses = [&](auto&& change) {
    ferry::worker_snapshot wrong = whole;
    change(wrong);
    expect_error(errc::malformed, "that cannot be",
                 [&] { (void)d::decode_snapshot(d::encode_snapshot(wrong).bytes(), {}); });
  };
  refuses([](auto& wrong) { wrong.time = std::chrono::system_clock::time_point(-1s); });
  refuses([](auto& wrong) { wrong.steady_ns = std::numeric_limits<std::int64_t>::max(); });
  refuses([](auto& wrong) { wrong.pending_calls[0].age = -1ns; });
  refuses([](auto& wrong) { wrong.pending_calls[0].silence = std::chrono::nanoseconds::min(); });
  refuses([](auto& wrong) { wrong.pending_calls[1].until = ferry::deadline(ferry::clock::time_point::min()); });
  refuses([](auto& wrong) { wrong.served_calls[0].phase = static_cast<ferry::served_phase>(77); });
  refuses([](auto& wrong) { wrong.events[0].steady_ns = -1; });
  ferry::byte_buffer later = d::encode_snapshot(whole);
  later.data()[0] = std::byte{9};
  expect_error(errc::version_mismatch, "format 9", [&] { (void)d::decode_snapshot(later.bytes(), {}); });
}

}  // namespace observer_test

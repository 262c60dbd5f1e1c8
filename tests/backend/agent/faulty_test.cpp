// Workers over a backend that drops, delays, duplicates, reorders, corrupts and cuts.

#include <ferry/test_kit/faulty.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include <ferry/ferry.hpp>
#include <ferry/test_kit/backend_conformance.hpp>

#include "captured_log.hpp"
#include "expect_error.hpp"
#include "rpc/worker/worker_core.hpp"
#include "temporary_directory.hpp"
#include "watchdog.hpp"

namespace faulty_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::fault_action;
using ferry::fault_direction;
using ferry::fault_injector;
using ferry::message_kinds;
using ferry_test::captured_log;

using backend = ferry::faulty<ferry::native>;
static_assert(ferry::rpc_backend<backend>);
static_assert(ferry::backend_traits<backend>::name == "faulty_native");

int add(int a, int b) { return a + b; }
std::string text(const std::string& given) { return given; }
int fail(const std::string& why) { throw std::domain_error(why); }
std::atomic<int> notes{0};
void note(int value) { notes += value; }
std::atomic<int> runs{0};
int run() { return ++runs; }
std::atomic<int> order{0};
void next(int value) {
  int before = order;
  while (!order.compare_exchange_weak(before, before * 10 + value)) {
  }
}
// The callers, as reported by the channel.
std::mutex senders_mutex;
std::vector<std::pair<ferry::worker_info, ferry::incarnation_id>> senders;  // guarded by senders_mutex
void note_sender() {
  const ferry::detail::incoming_call* call = ferry::detail::thread_call();
  const ferry::worker_info* from = call ? call->sender() : nullptr;
  const std::lock_guard lock(senders_mutex);
  senders.emplace_back(from ? *from : ferry::worker_info(),
                       call ? call->sender_incarnation() : ferry::incarnation_id());
}
std::atomic<int> stopped{0};
ferry::task<int> until_stopped() {
  auto promise = std::make_shared<ferry::promise<int>>();
  const auto token = ferry::this_call().stop_token();
  std::stop_callback callback(token, [promise] { promise->set_value(0); });
  co_await promise->get_future();
  ++stopped;
  co_return 0;
}
void wait_for(const std::atomic<int>& value, int wanted) {
  while (value != wanted) std::this_thread::yield();
}

// Two or more workers of this process that share one injector.
class cluster {
 public:
  explicit cluster(int size, const fault_injector& faults = fault_injector(), ferry::timeout rpc_timeout = 100s) {
    workers_.resize(static_cast<std::size_t>(size));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank != size; ++rank) {
      threads.emplace_back([&, rank] {
        auto options = ferry::construct_rpc_backend_options<backend>({.rpc_timeout = rpc_timeout});
        options.faults = faults;
        workers_[static_cast<std::size_t>(rank)] =
            ferry::init_rpc<backend>({.name = "worker" + std::to_string(rank),
                                      .rank = rank,
                                      .world_size = size,
                                      .init_method = "file://" + directory_.file("store"),
                                      .init_timeout = 60s},
                                     options);
      });
    }
  }
  ferry::worker& operator[](int rank) { return workers_.at(static_cast<std::size_t>(rank)); }
  void leave(bool graceful = true) {
    std::vector<std::jthread> threads;
    for (auto& each : workers_) threads.emplace_back([&] { each.shutdown(graceful, 20s); });
  }
  ~cluster() {
    for (auto& each : workers_) each.shutdown(false);
  }

 private:
  ferry_test::temporary_directory directory_;
  ferry_test::watchdog watchdog_{"a test with faults"};
  std::vector<ferry::worker> workers_;
};

struct faulty_under_test {
  using tag = backend;
  static std::string missing() { return {}; }
  static auto options() { return ferry::construct_rpc_backend_options<backend>({.num_worker_threads = 4}); }
};

// The defaults of the fault tests: 8 handler threads, all requests fail three times each, two methods are delayed.
ferry::faulty_options<ferry::native> fixture_options() {
  auto options = ferry::construct_rpc_backend_options<backend>({.num_worker_threads = 8});
  for (const char* method : {"faulty_test::run", "faulty_test::note", "faulty_test::fail", "faulty_test::text"}) {
    options.faults.add({.action = fault_action::fail,
                        .kinds = message_kinds::request | message_kinds::one_way,
                        .method = method,
                        .of_each = 3});
  }
  for (const char* method : {"faulty_test::add", "faulty_test::next"}) {
    options.faults.add({.action = fault_action::delay,
                        .kinds = message_kinds::request | message_kinds::one_way,
                        .method = method,
                        .delay = 1500ms});
  }
  return options;
}
ferry::worker alone(const ferry::faulty_options<ferry::native>& options, const ferry_test::temporary_directory& place) {
  return ferry::init_rpc({.name = "alone", .rank = 0, .world_size = 1, .init_method = "file://" + place.file("store")},
                         options);
}

TEST_CASE("a faulty backend without rules conforms") {
  const ferry_test::watchdog limit("the conformance of a faulty backend");
  ferry::test_kit::backend_conformance<faulty_under_test>();
}

TEST_CASE("both copies of a duplicated request report their sender") {
  fault_injector faults;
  faults.add({.action = fault_action::duplicate,
              .kinds = message_kinds::request | message_kinds::one_way,
              .method = "*note_sender",
              .direction = fault_direction::receiving});
  cluster group(2, faults);
  senders.clear();
  group[0].rpc_sync<note_sender>("worker1");
  group[0].notify<note_sender>("worker1");
  for (bool all_there = false; !all_there; std::this_thread::yield()) {
    const std::lock_guard lock(senders_mutex);
    all_there = senders.size() == 4;
  }
  for (const auto& [from, incarnation] : senders) {
    CHECK(from == group[0].info());
    CHECK(incarnation == group[0].core()->agent().incarnation());
  }
  faults.clear();
  group.leave();
}

TEST_CASE("[row 161] the defaults of the fixture reach the worker") {
  const ferry_test::watchdog limit("a fixture");
  ferry_test::temporary_directory place;
  const auto options = fixture_options();
  ferry::worker self = alone(options, place);
  CHECK(self.debug_info("agent.thread_pool_size") == "8");
  CHECK((self.rpc_timeout() == ferry::timeout(60s)));
  const auto rules = options.faults.rules();
  REQUIRE(rules.size() == 6);
  for (std::size_t i = 0; i != 4; ++i) {
    CHECK((rules[i].action == fault_action::fail));
    CHECK(rules[i].of_each == 3);
  }
  for (std::size_t i = 4; i != 6; ++i) {
    CHECK((rules[i].action == fault_action::delay));
    CHECK((rules[i].delay == 1500ms));
  }
  // Each distinct call fails three times, and then passes.
  for (int i = 0; i != 3; ++i) {
    expect_error(errc::injected_failure, "faulty_test::text", [&] { (void)self.rpc_sync<text>("alone", "a"); });
  }
  CHECK(self.rpc_sync<text>("alone", "a") == "a");
  expect_error(errc::injected_failure, "", [&] { (void)self.rpc_async<text>("alone", "b").get(); });
  expect_error(errc::injected_failure, "", [&] { self.notify<note>("alone", 1); });
  CHECK(options.faults.counters().failed == 5);
}

TEST_CASE("[row 162] custom rules are applied: others, none, other methods, other delays") {
  const ferry_test::watchdog limit("custom rules");
  ferry_test::temporary_directory place;
  auto options = fixture_options();
  options.faults = fault_injector();
  {
    ferry::worker self = alone(options, place);
    CHECK(options.faults.rules().empty());
    CHECK(self.rpc_sync<text>("alone", "a") == "a");
  }
  const ferry::fault_rule rule{.action = fault_action::delay,
                               .kinds = message_kinds::request,
                               .method = "*::add",
                               .peer = "alone",
                               .delay = 20ms};
  options.faults = fault_injector({rule}, 7);
  ferry::worker self = alone(options, place);
  CHECK((options.faults.rules() == std::vector{rule}));
  const auto begin = ferry::clock::now();
  CHECK(self.rpc_sync<add>("alone", 1, 2) == 3);
  CHECK((ferry::clock::now() - begin >= 20ms));
  CHECK(self.rpc_sync<text>("alone", "a") == "a");
  CHECK(options.faults.counters().delayed == 1);
  options.faults.clear();
  CHECK(self.rpc_sync<add>("alone", 1, 2) == 3);
  CHECK(options.faults.counters().delayed == 1);
}

TEST_CASE("[row 156] a late call of an operator: its own timeout, the default, a changed default, none") {
  captured_log log;
  fault_injector faults(
      {{.action = fault_action::delay, .kinds = message_kinds::request, .method = "*add", .delay = 400ms}});
  cluster group(2, faults, 60ms);
  const auto both = [&](ferry::timeout limit, errc expected) {
    expect_error(expected, "faulty_test::add", [&] {
      (void)group[0].rpc_sync<add>({"worker1", {.timeout = limit}}, 1, 2);
    });
    expect_error(expected, "faulty_test::add", [&] {
      (void)group[0].rpc_async<add>({"worker1", {.timeout = limit}}, 1, 2).get();
    });
  };
  both(50ms, errc::rpc_timeout);
  both({}, errc::rpc_timeout);
  CHECK(group[0].rpc_sync<add>({"worker1", {.timeout = ferry::no_timeout}}, 1, 2) == 3);
  CHECK(group[0].rpc_async<add>({"worker1", {.timeout = 100s}}, 1, 2).get() == 3);
  group[0].set_rpc_timeout(40ms);
  both({}, errc::rpc_timeout);
  group[0].set_rpc_timeout(100s);
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
  // A call whose deadline passed before it was sent met no rule.
  CHECK(faults.counters().delayed >= 3);
  CHECK(faults.counters().delayed <= 9);
  group.leave();
}

TEST_CASE("dropped requests, replies and one-way calls: calls end at their deadline, and the group leaves gracefully") {
  captured_log log;
  for (const auto kinds : {message_kinds::request, message_kinds::reply}) {
    for (const auto direction : {fault_direction::sending, fault_direction::receiving}) {
      fault_injector faults;
      cluster group(2, faults);
      CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);  // so that there is a connection
      const auto rule = faults.add({.action = fault_action::drop, .kinds = kinds, .direction = direction});
      expect_error(errc::rpc_timeout, "faulty_test::add", [&] {
        (void)group[0].rpc_sync<add>({"worker1", {.timeout = 200ms}}, 1, 2);
      });
      expect_error(errc::rpc_timeout, "faulty_test::add", [&] {
        (void)group[0].rpc_async<add>({"worker1", {.timeout = 200ms}}, 1, 2).get();
      });
      const auto forever = group[0].rpc_async<add>({"worker1", {.timeout = ferry::no_timeout}}, 1, 2);
      forever.cancel();
      CHECK_THROWS_AS((void)forever.get(), ferry::call_cancelled);
      CHECK(faults.remove(rule));
      CHECK(!faults.remove(rule));
      CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
      CHECK(faults.counters().dropped >= 2);  // the third may be cancelled before a rule applies to it
      group.leave();
    }
  }
  fault_injector faults({{.action = fault_action::drop, .kinds = message_kinds::one_way, .limit = 2}});
  cluster group(2, faults);
  notes = 0;
  for (int i = 0; i != 5; ++i) group[0].notify<note>("worker1", 1);
  group.leave();
  CHECK(notes == 3);
}

TEST_CASE("late and reordered messages arrive; later ones overtake them") {
  fault_injector faults;
  cluster group(2, faults);
  order = 0;
  const auto rule = faults.add({.action = fault_action::reorder,
                                .kinds = message_kinds::one_way,
                                .method = "*next",
                                .delay = 100s,
                                .behind = 2,
                                .limit = 1});
  for (int i = 1; i <= 2; ++i) group[0].notify<next>("worker1", i);
  wait_for(order, 2);
  group[0].notify<next>("worker1", 3);
  while (order != 231 && order != 213) std::this_thread::yield();  // two handlers at once may run in any order
  faults.remove(rule);
  for (const auto kinds : {message_kinds::request, message_kinds::reply}) {
    for (const auto direction : {fault_direction::sending, fault_direction::receiving}) {
      const auto number =
          faults.add({.action = fault_action::delay, .kinds = kinds, .direction = direction, .delay = 5ms});
      CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
      CHECK(group[0].rpc_async<add>("worker1", 3, 4).get() == 7);
      faults.remove(number);
    }
  }
  faults.add({.action = fault_action::delay, .kinds = message_kinds::one_way, .delay = 20ms});
  notes = 0;
  group[0].notify<note>("worker1", 5);
  group.leave();  // waits for it
  CHECK(notes == 5);
}

TEST_CASE("duplicated requests run twice, and the call ends once") {
  for (const auto direction : {fault_direction::sending, fault_direction::receiving}) {
    fault_injector faults({{.action = fault_action::duplicate, .direction = direction}});
    cluster group(2, faults);
    runs = 0;
    CHECK(group[0].rpc_sync<run>("worker1") >= 1);
    wait_for(runs, 2);
    CHECK(group[0].rpc_async<run>("worker1").get() >= 3);
    wait_for(runs, 4);
    notes = 0;
    group[0].notify<note>("worker1", 1);
    wait_for(notes, 2);
    group.leave();
    CHECK(faults.counters().duplicated != 0);
  }
}

TEST_CASE("corrupted messages cause errors or other values, never a crash") {
  captured_log log;
  fault_injector faults({{.action = fault_action::corrupt, .direction = fault_direction::both, .probability = 0.5}}, 3);
  cluster group(2, faults, 5s);
  int good = 0;
  for (int i = 0; i != 300; ++i) {
    try {
      (void)group[0].rpc_sync<text>("worker1", std::string(20, 'a'));
      ++good;
    } catch (const ferry::error&) {
    } catch (const std::exception&) {
    }
  }
  CHECK(good != 0);
  CHECK(faults.counters().corrupted != 0);
  faults.clear();
  CHECK(group[0].rpc_sync<text>("worker1", "again") == "again");
  group.leave();
}

TEST_CASE(
    "calls to a peer that is cut off fail, old and new ones; other peers are not affected, and it can be healed") {
  captured_log log;
  fault_injector faults;
  cluster group(3, faults);
  stopped = 0;
  const auto pending = group[0].rpc_async<until_stopped>({"worker1", {.timeout = ferry::no_timeout}});
  std::jthread blocked([&] {
    CHECK_THROWS_AS((void)group[2].rpc_sync<until_stopped>({"worker1", {.timeout = ferry::no_timeout}}),
                    ferry::peer_lost);
  });
  while (group[1].debug_info("agent.server_active_calls") != "2") std::this_thread::yield();
  faults.cut("worker1");
  expect_error(errc::peer_lost, "worker1", [&] { (void)pending.get(); });
  blocked.join();
  wait_for(stopped, 2);  // their handlers are stopped
  expect_error(errc::connect_failed, "cut the peer off", [&] { (void)group[0].rpc_sync<add>("worker1", 1, 2); });
  expect_error(errc::rpc_timeout, "worker0", [&] {
    (void)group[1].rpc_sync<add>({"worker0", {.timeout = 20ms}}, 1, 2);
  });
  CHECK(group[0].rpc_sync<add>("worker2", 1, 2) == 3);
  faults.heal("worker1");
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
  CHECK(group[1].rpc_sync<add>("worker0", 1, 2) == 3);
  faults.add({.action = fault_action::cut, .method = "*run", .limit = 1});
  CHECK_THROWS_AS((void)group[0].rpc_sync<run>("worker1"), ferry::error);
  expect_error(errc::connect_failed, "", [&] { (void)group[0].rpc_sync<add>("worker1", 1, 2); });
  faults.clear();
  CHECK(group[0].rpc_sync<add>("worker1", 1, 2) == 3);
  group.leave();
}

TEST_CASE("a lost cancellation leaves the handler running; the caller still gets its error") {
  captured_log log;
  fault_injector faults({{.action = fault_action::drop, .kinds = message_kinds::cancel, .limit = 1}});
  cluster group(2, faults);
  stopped = 0;
  for (int i = 0; i != 2; ++i) {
    const auto call = group[0].rpc_async<until_stopped>({"worker1", {.timeout = 100s}});
    const std::string running = std::to_string(i + 1);
    while (group[1].debug_info("agent.server_active_calls") != running) std::this_thread::yield();
    call.cancel();
    CHECK_THROWS_AS((void)call.get(), ferry::call_cancelled);
  }
  wait_for(stopped, 1);
  CHECK(faults.counters().dropped == 1);
}

TEST_CASE("calls without a deadline that are given up hold up no shutdown, whatever of them is lost") {
  fault_injector faults({{.action = fault_action::drop, .kinds = message_kinds::reply | message_kinds::cancel}});
  cluster group(2, faults);
  auto call = group[0].rpc_async<run>(ferry::to(1, {.timeout = ferry::no_timeout}));
  while (faults.counters().dropped == 0) std::this_thread::yield();  // its reply
  call.cancel();
  CHECK_THROWS_AS((void)call.get(), ferry::call_cancelled);
  CHECK(faults.counters().dropped == 2);
  faults.clear();
  group.leave();
}

TEST_CASE("the lost duplicate of a call without a deadline holds up no shutdown") {
  fault_injector faults(
      {{.action = fault_action::duplicate, .kinds = message_kinds::request, .direction = fault_direction::sending},
       {.action = fault_action::drop, .kinds = message_kinds::request, .direction = fault_direction::receiving}});
  cluster group(2, faults);
  auto call = group[0].rpc_async<run>(ferry::to(1, {.timeout = ferry::no_timeout}));
  while (faults.counters().dropped != 2) std::this_thread::yield();
  faults.clear();
  call.cancel();
  group.leave();
}

TEST_CASE("a shutdown that is not graceful ends the calls that a fault holds back") {
  captured_log log;
  fault_injector faults({{.action = fault_action::delay, .method = "*add", .delay = 100s},
                         {.action = fault_action::drop, .method = "*run"}});
  cluster group(2, faults);
  const auto late = group[0].rpc_async<add>({"worker1", {.timeout = ferry::no_timeout}}, 1, 2);
  const auto lost = group[0].rpc_async<run>({"worker1", {.timeout = ferry::no_timeout}});
  group[0].shutdown(false);
  expect_error(errc::shutting_down, "", [&] { (void)late.get(); });
  expect_error(errc::shutting_down, "", [&] { (void)lost.get(); });
}

TEST_CASE("invalid rules are refused; one seed gives the same faults") {
  fault_injector faults;
  expect_error(errc::invalid_argument, "probability", [&] { faults.add({.probability = 2}); });
  expect_error(errc::invalid_argument, "delay", [&] { faults.add({.delay = -1ms}); });
  expect_error(errc::invalid_argument, "behind", [&] { faults.add({.behind = 0}); });
  expect_error(errc::invalid_argument, "kinds", [&] { faults.add({.action = fault_action::fail}); });
  captured_log log;
  std::vector<std::string> outcomes;
  for (int run_number = 0; run_number != 2; ++run_number) {
    fault_injector seeded({{.action = fault_action::fail, .kinds = message_kinds::request, .probability = 0.5}}, 42);
    cluster group(2, seeded);
    std::string outcome;
    for (int i = 0; i != 40; ++i) {
      try {
        (void)group[0].rpc_sync<add>("worker1", i, 1);
        outcome += 'y';
      } catch (const ferry::error&) {
        outcome += 'n';
      }
    }
    outcomes.push_back(outcome);
    group.leave();
  }
  CHECK(outcomes[0] == outcomes[1]);
  CHECK(outcomes[0].find('y') != std::string::npos);
  CHECK(outcomes[0].find('n') != std::string::npos);
}

}  // namespace faulty_test

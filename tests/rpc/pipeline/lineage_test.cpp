// A client of the call pipeline that knows the public headers alone (lineage.hpp), over calls of every kind.

#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/test_kit/faulty.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "lineage.hpp"

namespace lineage_test {

using ferry::errc;
using ferry::tensor;
using ferry::worker;
using ferry_test::cluster;
using lineage::state_key;
using namespace std::chrono_literals;

std::uint64_t here() {
  const std::uint64_t* id = ferry::current_value(lineage::current);
  return id ? *id : 0;
}
std::string next_of(const std::string& route) { return route.substr(0, route.find(' ')); }
std::string rest_of(const std::string& route) {
  const auto space = route.find(' ');
  return space == std::string::npos ? "" : route.substr(space + 1);
}
// Calls itself along the route; returns the lineage at each station.
std::vector<std::uint64_t> along(const std::string& route, tensor what) {
  std::vector<std::uint64_t> seen{here()};
  if (route.empty()) return seen;
  for (std::uint64_t each : ferry::rpc_sync<along>(next_of(route), rest_of(route), what)) seen.push_back(each);
  return seen;
}
ferry::task<std::vector<std::uint64_t>> later_along(std::string route, tensor what) {
  std::vector<std::uint64_t> seen{here()};
  if (!route.empty()) {
    for (std::uint64_t each : co_await ferry::rpc_async<later_along>(next_of(route), rest_of(route), what))
      seen.push_back(each);
  }
  seen.push_back(here());  // perhaps on another thread
  co_return seen;
}
ferry::future<std::uint64_t> by_continuation(tensor what) {
  return ferry::rpc_async<along>(ferry::get_worker_info().id(), std::string(), what)
      .then([](const std::vector<std::uint64_t>&) { return here(); });
}
tensor twice(tensor x) { return x + x; }
int fail() { throw std::domain_error("no"); }
ferry_test::gate told;
void tell() { told.arrive(); }
struct made {
  std::uint64_t at = here();
};
std::uint64_t where_made(const made& object) { return object.at; }
struct unsendable {
  template <class A>
  void save(A&) const {
    throw std::runtime_error("cannot be encoded");
  }
  template <class A>
  void load(A&) {}
};
int takes(unsendable) { return 0; }
ferry_test::gate held;
ferry_test::gate reached;
int stay(bool says_so) {
  if (says_so) reached.arrive();
  held.pass();
  return 0;
}

namespace {

ferry_test::cluster_options with_trackers(std::vector<std::string> who = {"worker0", "worker1", "worker2"},
                                          bool critical = true) {
  ferry_test::cluster_options options;
  options.configure = [who = std::move(who), critical](ferry::worker_config& config) {
    if (std::find(who.begin(), who.end(), config.name) != who.end())
      config.interceptors = {std::make_shared<lineage::tracker>(critical)};
  };
  return options;
}

tensor doubles() { return ferry::full({3}, 1.5, ferry::dtype::f64); }

// Every call and request has had all its events. The last ones may come a little after the caller has its result.
void check_balance(cluster& group) {
  for (int i = 0; i != group.size(); ++i) {
    const auto all = ferry::attached(state_key, group[i]);
    CAPTURE(i);
    while (all->replied + all->ended != all->made || all->over != all->arrived) std::this_thread::yield();
    CHECK(all->sent + all->not_sent == all->made);
    CHECK_FALSE(all->twice);
  }
}

}  // namespace

TEST_CASE("a lineage goes along a chain of calls over three workers and back to the first") {
  cluster group(3, with_trackers());
  const ferry::context_value_scope scope(lineage::current, 77U);
  CHECK(group[0].rpc_sync<along>("worker1", "worker2 worker0", doubles()) == std::vector<std::uint64_t>{77, 77, 77});
  for (int i = 0; i != 3; ++i) {
    const auto all = ferry::attached(state_key, group[i]);
    CHECK(all->has_seen(77));
    CHECK(all->made == 1);
    CHECK(all->arrived == 1);
    CHECK(all->tracked_out == 1);
    CHECK(all->tracked_in == 1);
  }
  check_balance(group);
}

TEST_CASE("without a lineage nothing is added to a call") {
  cluster group(2, with_trackers());
  CHECK(group[0].rpc_sync<along>("worker1", "worker0", doubles()) == std::vector<std::uint64_t>{0, 0});
  CHECK(ferry::attached(state_key, group[0])->made == 0);
  CHECK(ferry::attached(state_key, group[1])->arrived == 0);
}

TEST_CASE("a lineage goes with calls of every kind") {
  cluster group(3, with_trackers());
  const auto caller = ferry::attached(state_key, group[0]);
  const auto callee = ferry::attached(state_key, group[1]);
  const ferry::context_value_scope scope(lineage::current, 5U);
  SUBCASE("asynchronous") {
    CHECK(group[0].rpc_async<along>("worker1", "worker2", doubles()).get() == std::vector<std::uint64_t>{5, 5});
    CHECK(caller->replied == 1);
  }
  SUBCASE("a coroutine, which keeps it where it resumes") {
    CHECK(group[0].rpc_sync<later_along>("worker1", "worker2 worker0", doubles()) ==
          std::vector<std::uint64_t>{5, 5, 5, 5, 5, 5});
  }
  SUBCASE("a continuation of the handler") { CHECK(group[0].rpc_sync<by_continuation>("worker1", doubles()) == 5); }
  SUBCASE("one way") {
    told.reset();
    group[0].notify<tell>("worker1");
    told.await_arrivals(1);
    CHECK(caller->sent == 1);
    CHECK(caller->ended == 1);
    while (callee->over != 1) std::this_thread::yield();
    CHECK(callee->results == 1);
    CHECK(callee->replies == 0);
  }
  SUBCASE("an exception") {
    CHECK_THROWS_AS(group[0].rpc_sync<fail>("worker1"), std::domain_error);
    CHECK(caller->replied == 1);
    CHECK(callee->errors == 1);
    CHECK(callee->replies == 1);
  }
  SUBCASE("to oneself") {
    CHECK(group[0].rpc_sync<along>("worker0", "worker0", doubles()) == std::vector<std::uint64_t>{5, 5});
    CHECK(caller->made == 2);
    CHECK(caller->arrived == 2);
  }
  SUBCASE("tensors of results") {
    CHECK(group[0].rpc_sync<twice>("worker1", doubles()).dtype() == ferry::dtype::f64);
    CHECK(caller->tracked_in == 1);
    CHECK(callee->tracked_out == 1);
  }
  SUBCASE("calls that make objects, and calls on them") {
    const auto object = group[0].remote<ferry::make<made>>("worker1");
    CHECK(object.rpc_sync<&where_made>() == 5);
    CHECK(callee->replies == 2);
  }
  SUBCASE("a method that the callee does not have") {
    ferry_test::captured_log log;
    constexpr auto there = ferry::stub<"lineage_test/nowhere", int(int)>;
    expect_error(errc::unknown_method, "no method", [&] { (void)group[0].rpc_sync<there>("worker1", 1); });
    CHECK(callee->errors == 1);
    CHECK(callee->replies == 1);
  }
  check_balance(group);
}

TEST_CASE("two threads, and two coroutines of one handler, have lineages of their own") {
  cluster group(2, with_trackers());
  ferry_test::run_together(
      {[&] {
         const ferry::context_value_scope scope(lineage::current, 1U);
         for (int i = 0; i != 50; ++i)
           CHECK(group[0].rpc_sync<along>("worker1", "worker0", doubles()) == std::vector<std::uint64_t>{1, 1});
       },
       [&] {
         const ferry::context_value_scope scope(lineage::current, 2U);
         for (int i = 0; i != 50; ++i)
           CHECK(group[0].rpc_sync<later_along>("worker1", "worker0", doubles()) ==
                 std::vector<std::uint64_t>{2, 2, 2, 2});
       }});
  check_balance(group);
}

TEST_CASE("whatever keeps a request from being sent is told to its hooks") {
  cluster group(2, with_trackers());
  const auto all = ferry::attached(state_key, group[0]);
  const ferry::context_value_scope scope(lineage::current, 9U);
  SUBCASE("an argument that cannot be encoded: the call is not seen at all") {
    CHECK_THROWS_AS((void)group[0].rpc_sync<takes>("worker1", unsendable()), std::runtime_error);
    CHECK(all->made == 0);
  }
  SUBCASE("an unknown worker, too") {
    expect_error(errc::unknown_worker, "nowhere", [&] { (void)group[0].rpc_sync<twice>("nowhere", doubles()); });
    CHECK(all->made == 0);
  }
  SUBCASE("a message over the limit of the wire format") {
    const std::vector<tensor> many(70'000, doubles());
    (void)many;
  }
  SUBCASE("a worker that has been shut down") {
    // Between the sealing of the request and its sending: the call is made by hand.
    ferry::worker lone = ferry::init_rpc({.name = "lone",
                                          .rank = 0,
                                          .world_size = 1,
                                          .init_method = "tcp://127.0.0.1:0",
                                          .interceptors = {std::make_shared<lineage::tracker>()}});
    const auto own = ferry::attached(state_key, lone);
    ferry::detail::outgoing_call call(lone.core(), "lone", ferry::detail::usable_method<&twice>(),
                                      ferry::detail::call_mode::waiting);
    ferry::detail::write_arguments<&twice, ferry::detail::method_flavour::call>(call, doubles());
    CHECK(own->made == 1);
    lone.shutdown();
    CHECK_THROWS_AS(call.run(), ferry::error);
    CHECK(own->not_sent == 1);
    CHECK(own->ended == 1);
    CHECK_FALSE(own->twice);
  }
  SUBCASE("a call that was sealed and forgotten") {
    {
      ferry::detail::outgoing_call call(group[0].core(), "worker1", ferry::detail::usable_method<&twice>(),
                                        ferry::detail::call_mode::waiting);
      ferry::detail::write_arguments<&twice, ferry::detail::method_flavour::call>(call, doubles());
    }
    CHECK(all->not_sent == 1);
    CHECK(all->ended == 1);
  }
  check_balance(group);
}

TEST_CASE("a call that times out, is cancelled, or loses its peer has ended for its hooks") {
  ferry_test::captured_log log;
  cluster group(2, with_trackers());
  const auto all = ferry::attached(state_key, group[0]);
  const ferry::context_value_scope scope(lineage::current, 3U);
  held.reset();
  reached.reset();
  // A call whose limit is over before it is sent is not seen at all, which a busy machine may do to a short one.
  for (std::chrono::nanoseconds limit = 20ms; all->made == 0; limit *= 2) {
    expect_error(errc::rpc_timeout, "", [&] { (void)group[0].rpc_sync<stay>({"worker1", {.timeout = limit}}, false); });
  }
  CHECK(all->ended == 1);
  const auto future = group[0].rpc_async<stay>({"worker1", {.timeout = ferry::no_timeout}}, false);
  future.cancel();
  expect_error(errc::call_cancelled, "", [&] { (void)future.get(); });
  std::stop_source stop;
  ferry_test::run_together(
      {[&] {
         const ferry::context_value_scope inner(lineage::current, 4U);
         expect_error(errc::call_cancelled, "", [&] {
           (void)group[0].rpc_sync<stay>({"worker1", {.timeout = ferry::no_timeout, .stop = stop.get_token()}}, true);
         });
       },
       [&] {
         reached.await_arrivals(1);
         stop.request_stop();
       }});
  CHECK(all->ended == 3);
  CHECK(all->replied == 0);
  held.open();
  check_balance(group);
}

TEST_CASE("a peer without the interceptor refuses a critical record, and skips another one") {
  SUBCASE("critical") {
    ferry_test::captured_log log;
    cluster group(2, with_trackers({"worker0"}));
    const ferry::context_value_scope scope(lineage::current, 6U);
    expect_error(errc::unknown_extension, "worker_config::interceptors",
                 [&] { (void)group[0].rpc_sync<twice>("worker1", doubles()); });
    CHECK(ferry::attached(state_key, group[0])->replied == 1);
  }
  SUBCASE("not critical") {
    cluster group(2, with_trackers({"worker0"}, false));
    const ferry::context_value_scope scope(lineage::current, 6U);
    CHECK(group[0].rpc_sync<twice>("worker1", doubles()).defined());
  }
}

TEST_CASE("every call ends exactly once for its hooks, whatever happens to messages") {
  ferry_test::captured_log log;
  const auto seed = std::random_device()();
  CAPTURE(seed);
  std::vector<ferry::fault_injector> faults;
  std::vector<worker> workers(2);
  ferry_test::temporary_directory directory;
  {
    std::vector<std::function<void()>> starts;
    for (int i = 0; i != 2; ++i) faults.emplace_back(seed + static_cast<unsigned>(i));
    for (int i = 0; i != 2; ++i) {
      starts.emplace_back([&, i] {
        auto options = ferry::construct_rpc_backend_options<ferry::faulty<ferry::native>>();
        options.faults = faults[static_cast<std::size_t>(i)];
        workers[static_cast<std::size_t>(i)] = ferry::init_rpc({.name = "worker" + std::to_string(i),
                                                                .rank = i,
                                                                .world_size = 2,
                                                                .init_method = "file://" + directory.file("meeting"),
                                                                .interceptors = {std::make_shared<lineage::tracker>()}},
                                                               options);
      });
    }
    ferry_test::run_together(starts);
  }
  for (auto& each : faults) {
    each.add({.action = ferry::fault_action::drop, .kinds = ferry::message_kinds::request, .probability = 0.05});
    each.add({.action = ferry::fault_action::drop, .kinds = ferry::message_kinds::reply, .probability = 0.05});
    each.add({.action = ferry::fault_action::duplicate, .kinds = ferry::message_kinds::request, .probability = 0.1});
    each.add({.action = ferry::fault_action::duplicate, .kinds = ferry::message_kinds::reply, .probability = 0.1});
    each.add(
        {.action = ferry::fault_action::delay, .kinds = ferry::message_kinds::reply, .delay = 3ms, .probability = 0.1});
    each.add({.action = ferry::fault_action::fail, .kinds = ferry::message_kinds::request, .probability = 0.05});
  }
  {
    const ferry::context_value_scope scope(lineage::current, 8U);
    std::vector<ferry::future<std::vector<std::uint64_t>>> futures;
    std::mt19937 random(seed);
    for (int i = 0; i != 400; ++i) {
      try {
        // Most time out where the machine is busy. Some do not, unless a message of theirs is dropped.
        const ferry::timeout limit = i % 16 == 0 ? 3s : 50ms;
        auto future = workers[0].rpc_async<later_along>({"worker1", {.timeout = limit}}, "worker0", doubles());
        if (random() % 8 == 0) future.cancel();
        futures.push_back(std::move(future));
      } catch (const ferry::error&) {  // injected
      }
    }
    int values = 0;
    for (const auto& each : futures) {
      try {
        const std::vector<std::uint64_t> seen = each.get();
        CHECK(seen == std::vector<std::uint64_t>{8, 8, 8, 8});
        ++values;
      } catch (const ferry::error&) {  // timed out or cancelled
      }
    }
    CHECK(values > 0);
  }
  for (auto& each : faults) each.clear();
  for (const worker& each : workers) {
    const auto all = ferry::attached(state_key, each);
    while (all->replied + all->ended != all->made || all->over != all->arrived) std::this_thread::yield();
    CHECK(all->sent + all->not_sent == all->made);
    CHECK_FALSE(all->twice);
  }
  ferry_test::run_together({[&] { workers[0].shutdown(); }, [&] { workers[1].shutdown(); }});
}

}  // namespace lineage_test

// What a process scope records: everything, in one process and in several.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/rpc/interceptor.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "event_of.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "profiler/profile_archive.hpp"
#include "rpc/pipeline/interceptor_table.hpp"
#include "tests/rpc/worker/process_group.hpp"

namespace process_scope_test {

namespace detail = ferry::detail;
namespace profiler = ferry::profiler;
using ferry::errc;
using ferry::range_kind;
using ferry::tensor;
using ferry_test::cluster;
using profiler::event;
using profiler::process_scope;
using profiler::profile;
using profiler_test::event_of;

tensor triple(const tensor& a) {
  const profiler::range part("triple");
  return a + a + a;
}
tensor triple_at(const tensor& a, const std::string& next) { return ferry::rpc_sync<triple>(next, a); }
void fail() { throw std::runtime_error("no"); }
void receive(int) {}

ferry_test::gate held;
int hold_back() {
  held.pass();
  const profiler::range part("behind the gate");
  return 1;
}

// For the workers of other processes.
process_scope& scope_here() {
  static process_scope instance({.remote = false});
  return instance;
}
void enter_here() { scope_here().enter(); }
std::vector<std::byte> exit_here() {
  const ferry::byte_buffer bytes = detail::encode_profile(scope_here().exit());
  return {bytes.bytes().begin(), bytes.bytes().end()};
}
std::int64_t clock_here() { return ferry::clock::now().time_since_epoch().count(); }

process_scope make_process_scope() { return process_scope(); }

tensor some_numbers() { return ferry::ones({2, 2}, ferry::dtype::f64); }

// The only event of that kind whose name ends so.
const event& only(const profile& from, range_kind kind, std::string_view end, bool remote = false) {
  const auto is = [&](const event& each) {
    return each.kind == kind && each.remote == remote && each.name.ends_with(end);
  };
  std::string all;
  for (const event& each : from.events) all += each.name + "\n";
  REQUIRE_MESSAGE(std::count_if(from.events.begin(), from.events.end(), is) == 1, std::string(end), " among\n", all);
  return *std::find_if(from.events.begin(), from.events.end(), is);
}
std::size_t count_if(const profile& from, range_kind kind, std::string_view part) {
  return static_cast<std::size_t>(std::count_if(from.events.begin(), from.events.end(), [&](const event& each) {
    return each.kind == kind && each.name.find(part) != std::string::npos;
  }));
}
// Parents exist, and what is part of an event lies within it, but for what clocks do not tell.
void check_structure(const profile& found) {
  std::set<std::uint64_t> numbers;
  for (const event& each : found.events) CHECK(numbers.insert(each.number).second);
  for (const event& each : found.events) {
    CHECK(each.ended_ns >= each.began_ns);
    if (each.parent == 0) continue;
    const event* parent = found.find(each.parent);
    REQUIRE(parent != nullptr);
    if (parent->kind == range_kind::call) CHECK(each.kind == range_kind::handler);
    const std::int64_t tolerance = each.uncertainty_ns + parent->uncertainty_ns + 20'000;
    CHECK_MESSAGE(each.began_ns >= parent->began_ns - tolerance, each.name, " in ", parent->name);
  }
  (void)profiler::chrome_trace(found, {.largest_uncertainty = std::chrono::seconds(10)});
  (void)profiler::html_page(found, {.largest_uncertainty = std::chrono::seconds(10)});
  (void)profiler::table(found);
  if (const event* longest = profiler::longest_event(found)) {
    const auto path = profiler::critical_path(found, longest->number);
    std::int64_t length = 0;
    for (const profiler::path_step& each : path) length += each.duration_ns();
    CHECK(length == longest->duration_ns());
  }
}

TEST_CASE("a process scope records what threads without a session do, and what is served, and links both") {
  cluster group(2);
  bool asks = false;
  SUBCASE("asking callees") { asks = true; }
  SUBCASE("asking none") {}
  process_scope everything(group[0], {.shapes = true, .remote = asks});
  everything.enter();
  {
    const profiler::range part("step");
    (void)ferry::matmul(some_numbers(), some_numbers());
    (void)group[0].rpc_sync<triple>("worker1", some_numbers());
  }
  CHECK_THROWS(group[1].rpc_sync<fail>("worker0"));
  std::thread other([&] { (void)group[0].rpc_async<triple>("worker1", some_numbers()).get(); });
  other.join();
  group[0].notify<receive>("worker1", 1);
  const profile found = everything.exit();
  check_structure(found);
  CHECK(found.node == 0);
  CHECK(found.lost == 0);
  CHECK(found.workers == std::vector<std::string>{"worker0", "worker1"});

  const event& step = only(found, range_kind::user, "step");
  const event& product = only(found, range_kind::operation, "matmul");
  CHECK(product.parent == step.number);
  CHECK(product.shapes == "[[2, 2], [2, 2]]");
  CHECK(step.node == 0);
  CHECK(count_if(found, range_kind::call, "triple") == 2);
  CHECK(count_if(found, range_kind::handler, "triple") == 2);  // each once, though they came back with replies, too
  CHECK(count_if(found, range_kind::user, "triple") == 2);
  CHECK(count_if(found, range_kind::operation, "add") == 4);
  for (const event& each : found.events) {
    CHECK_FALSE(each.remote);
    if (each.kind != range_kind::handler || each.name.find("triple") == std::string::npos) continue;
    const event* call = found.find(each.parent);
    REQUIRE(call != nullptr);
    CHECK(call->kind == range_kind::call);
    CHECK(call->node == 0);
    CHECK(call->peer == 1);
    CHECK(each.node == 1);
    CHECK(each.peer == 0);
    CHECK(each.began_ns >= call->began_ns - 20'000);
    CHECK(each.ended_ns <= call->ended_ns + 20'000);
    const std::vector<const event*> parts = found.children(each);
    REQUIRE(parts.size() == 1);
    CHECK(parts[0]->name == "triple");
    CHECK(parts[0]->node == 1);
    CHECK(found.children(*parts[0]).size() == 2);
  }
  const event& failed = only(found, range_kind::handler, "fail");
  CHECK(failed.failed);
  CHECK(failed.error.find("no") != std::string::npos);
  CHECK(found.find(failed.parent)->failed);
  CHECK(found.find(failed.parent)->node == 1);
  CHECK(count_if(found, range_kind::call, "rpc_notify#") == 1);

  CHECK_FALSE(detail::ranges_watched());
  CHECK_FALSE(detail::interceptor_table::arrivals_watched());
  CHECK_FALSE(detail::interceptor_table::requests_watched());
}

TEST_CASE("a process scope is entered and left while calls are under way") {
  held.reset();
  cluster group(2);
  process_scope everything(group[0]);
  auto before = group[0].rpc_async<hold_back>("worker1");
  held.await_arrivals(1);
  everything.enter();
  auto meanwhile = group[0].rpc_async<hold_back>("worker1");
  held.await_arrivals(2);
  const profile first = everything.exit();
  CHECK(first.unfinished == 2);  // the call and its handler
  CHECK(first.events.empty());
  everything.enter();
  held.open();
  CHECK(before.get() + meanwhile.get() == 2);
  const profile second = everything.exit();
  CHECK(count_if(second, range_kind::call, "hold_back") == 0);  // these began before
  CHECK(count_if(second, range_kind::handler, "hold_back") == 0);
  CHECK(second.unfinished == 0);
  CHECK(count_if(second, range_kind::user, "behind the gate") == 2);  // and these did not
  for (const event& each : second.events) CHECK(each.parent == 0);
  check_structure(second);
}

TEST_CASE("two process scopes at a time each have all events, and so has a session among them") {
  cluster group(2);
  process_scope outer(group[0], {.remote = false});
  process_scope inner(group[1], {.shapes = true});
  expect_error(errc::invalid_argument, "not entered", [&] { (void)outer.exit(); });
  outer.enter();
  expect_error(errc::invalid_argument, "entered already", [&] { outer.enter(); });
  (void)(some_numbers() + some_numbers());
  inner.enter();
  profile own;
  {
    const profiler::range around("around");
    profiler::session recorded(group[0], {.memory = true});
    {
      const profiler::range within("within");
      (void)ferry::matmul(some_numbers(), some_numbers());
      (void)group[0].rpc_sync<triple>("worker1", some_numbers());
    }
    own = recorded.finish();
  }
  const profile one = inner.exit();
  (void)(some_numbers() * some_numbers());
  const profile all = outer.exit();
  check_structure(one);
  check_structure(all);
  check_structure(own);
  for (const profile* each : {&one, &all}) {
    const event& within = only(*each, range_kind::user, "within");
    CHECK(within.parent == only(*each, range_kind::user, "around").number);
    CHECK(only(*each, range_kind::operation, "matmul").parent == within.number);
    CHECK(only(*each, range_kind::operation, "matmul").bytes == -1);
    CHECK(only(*each, range_kind::call, "(worker0 -> worker1)").parent == within.number);
    CHECK(only(*each, range_kind::handler, "triple").parent ==
          only(*each, range_kind::call, "(worker0 -> worker1)").number);
  }
  CHECK(only(own, range_kind::operation, "matmul").shapes.empty());
  CHECK(only(own, range_kind::operation, "matmul").bytes > 0);
  CHECK(only(own, range_kind::user, "within").parent == 0);
  CHECK(only(own, range_kind::handler, "triple", true).parent != 0);
  CHECK(count_if(own, range_kind::user, "around") == 0);
  CHECK(only(all, range_kind::operation, "matmul").shapes.empty());
  CHECK(only(one, range_kind::operation, "matmul").shapes == "[[2, 2], [2, 2]]");
  CHECK(count_if(one, range_kind::operation, "add") == 2);
  CHECK(count_if(all, range_kind::operation, "add") == 3);
  CHECK(count_if(one, range_kind::operation, "mul") - count_if(one, range_kind::operation, "matmul") == 0);
  CHECK(count_if(all, range_kind::operation, "mul") - count_if(all, range_kind::operation, "matmul") == 1);
}

TEST_CASE("what sessions and server scopes record is as without a process scope") {
  cluster group(2);
  process_scope everything(group[0]);
  everything.enter();
  profiler::server_scope served;
  served.enter();
  profiler::session recorded(group[0]);
  (void)group[0].rpc_sync<triple>("worker1", some_numbers());
  const profile own = recorded.finish();
  const profile requests = profiler::merged(served.exit());
  (void)everything.exit();
  CHECK(own.events.size() == 5);  // the call, and what came with its reply: handler, range, two operations
  CHECK(std::count_if(own.events.begin(), own.events.end(), [](const event& each) { return each.remote; }) == 4);
  CHECK(requests.events.size() == 4);
}

TEST_CASE("a thread's ring of a process scope keeps the last events and counts the others; many threads share rings") {
  cluster group(1);
  process_scope everything(group[0], {.events_per_thread = 8});
  everything.enter();
  constexpr int threads = 200;
  constexpr int ranges = 20;
  for (int i = 0; i != threads; ++i) {
    std::thread([] {
      for (int each = 0; each != ranges; ++each) const profiler::range part("part");
    }).join();
  }
  const profile found = everything.exit();
  CHECK(found.events.size() <= std::size_t{65} * 8);
  CHECK(found.events.size() >= 8);
  CHECK(found.events.size() + found.lost == std::size_t{threads} * ranges);
  CHECK(found.unfinished == 0);
}

TEST_CASE("process scopes come and go while threads call") {
  cluster group(2);
  std::atomic<bool> over{false};
  std::atomic<int> failures{0};
  std::atomic<int> without_handlers{0};
  const auto counting_failures = [&](const auto& function) {
    try {
      function();
    } catch (const std::exception&) {
      ++failures;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i != 3; ++i) {
    threads.emplace_back([&, i] {
      counting_failures([&] {
        while (!over.load()) {
          const profiler::range part("loop");
          (void)group[i % 2].rpc_sync<triple>(ferry_test::worker_name((i + 1) % 2), some_numbers());
        }
      });
    });
  }
  std::vector<std::thread> recorders;
  for (int i = 0; i != 2; ++i) {
    recorders.emplace_back([&, i] {
      counting_failures([&] {
        process_scope everything(group[i], {.events_per_thread = 1000});
        for (int round = 0; round != 5; ++round) {
          everything.enter();
          for (int call = 0; call != 5; ++call)
            (void)group[i].rpc_sync<triple>(ferry_test::worker_name(1 - i), some_numbers());
          const profile found = everything.exit();
          if (found.lost == 0 && count_if(found, range_kind::handler, "triple") < 5) ++without_handlers;
        }
        everything.enter();  // left by its destructor
      });
    });
  }
  for (std::thread& each : recorders) each.join();
  over.store(true);
  for (std::thread& each : threads) each.join();
  CHECK(failures == 0);
  CHECK(without_handlers == 0);
  // A request that was recorded may have ended last: ranges are watched until one finds that nothing records.
  { const profiler::range after("after"); }
  CHECK_FALSE(detail::ranges_watched());
}

TEST_CASE("a process scope that is used through a reference records at its owner") {
  cluster group(2);
  const auto there = group[0].remote<make_process_scope>("worker1");
  there.rpc_sync<&process_scope::enter>();
  (void)group[0].rpc_sync<triple>("worker1", some_numbers());
  const profile found = there.rpc_sync<&process_scope::exit>();
  CHECK(found.node == 1);
  CHECK(only(found, range_kind::handler, "triple").node == 1);
  CHECK(found.unfinished >= 1);  // the request that asks for it
}

// ---------------------------------------------------------------- as bytes, and of a group

TEST_CASE("profiles are read from bytes as they were written, and only such that can be") {
  profile made;
  made.node = 3;
  made.began_ns = 5;
  made.ended_ns = 900;
  made.workers = {"", "other"};
  made.clocks = {{1, -40, 7, 2}};
  made.lost = 4;
  made.unfinished = 1;
  made.events.push_back(event_of("call", range_kind::call, 3, 1, 0, 10, 800));
  made.events.back().peer = 1;
  made.events.back().call = 77;
  made.events.back().device = ferry::device{ferry::device_kind::cuda, 1};
  made.events.back().device_time = std::chrono::nanoseconds(12);
  const ferry::byte_buffer bytes = detail::encode_profile(made);
  const profile found = detail::decode_profile(bytes.bytes(), {});
  CHECK(detail::encode_profile(found).bytes().size() == bytes.size());
  REQUIRE(found.events.size() == 1);
  CHECK(found.events[0].call == 77);
  CHECK(found.events[0].peer == 1);
  CHECK(found.events[0].device_time == std::chrono::nanoseconds(12));
  CHECK(found.clocks[0].offset_ns == -40);
  CHECK(found.workers == made.workers);
  for (std::size_t length = 0; length != bytes.size(); ++length)
    CHECK_THROWS_AS((void)detail::decode_profile(bytes.bytes().first(length), {}), ferry::error);
  const auto refused = [&](const auto& change) {
    profile wrong = made;
    change(wrong);
    expect_error(errc::malformed, "cannot be",
                 [&] { (void)detail::decode_profile(detail::encode_profile(wrong).bytes(), {}); });
  };
  refused([](profile& each) { each.events[0].kind = static_cast<range_kind>(17); });
  refused([](profile& each) { each.events[0].ended_ns = 9; });
  refused([](profile& each) { each.events[0].began_ns = std::int64_t{-1} << 61; });
  refused([](profile& each) { each.events[0].uncertainty_ns = -1; });
  refused([](profile& each) { each.events[0].parent = 1; });
  refused([](profile& each) { each.clocks[0].uncertainty_ns = -1; });
}

TEST_CASE("profiles of several workers are merged on the first one's clock, and each handler is in them once") {
  // Worker 1 is 1000 s ahead, worker 2 is not recorded.
  constexpr std::int64_t ahead = 1'000'000'000'000;
  profile first;
  first.node = 0;
  first.began_ns = 0;
  first.ended_ns = 9'000;
  first.events.push_back(event_of("call f", range_kind::call, 0, 1, 0, 1'000, 5'000));
  first.events.back().peer = 1;
  first.events.back().call = 7;
  first.events.push_back(event_of("call f#remote_op: f", range_kind::handler, 1, 2, 1, 2'010, 4'000));
  first.events.push_back(event_of("call f#remote_op: add", range_kind::operation, 1, 3, 2, 2'500, 3'000));
  first.events.push_back(event_of("call g", range_kind::call, 0, 4, 0, 6'000, 9'000));
  first.events.back().peer = 2;
  first.events.back().call = 8;
  first.events.push_back(event_of("call g#remote_op: g", range_kind::handler, 2, 5, 4, 6'500, 8'500));
  first.events.push_back(event_of("call g#remote_op: call h", range_kind::call, 2, 6, 5, 6'600, 8'000));
  first.events.push_back(event_of("call g#remote_op: call h#remote_op: h", range_kind::handler, 1, 7, 6, 7'000, 7'500));
  for (event& each : first.events) each.remote = each.name.find("#remote_op") != std::string::npos;
  profile second;
  second.node = 1;
  second.began_ns = ahead - 100;
  second.ended_ns = ahead + 9'500;
  second.lost = 3;
  second.events.push_back(event_of("f", range_kind::handler, 1, 1, 0, ahead + 2'000, ahead + 4'000));
  second.events.back().peer = 0;
  second.events.back().call = 7;
  second.events.push_back(event_of("add", range_kind::operation, 1, 2, 1, ahead + 2'500, ahead + 3'000));
  second.events.push_back(event_of("h", range_kind::handler, 1, 3, 0, ahead + 7'001, ahead + 7'501));
  second.events.back().peer = 2;
  second.events.back().call = 7;
  second.events.push_back(event_of("later", range_kind::user, 1, 4, 0, ahead + 9'000, ahead + 9'100));
  const profile all = profiler::merged_group({first, second}, {{.node = 1, .offset_ns = ahead, .uncertainty_ns = 50}});
  check_structure(all);
  CHECK(all.node == 0);
  CHECK(all.began_ns == -100);
  CHECK(all.ended_ns == 9'500);
  CHECK(all.lost == 3);
  CHECK(all.events.size() == 8);
  REQUIRE(all.count("f") == 1);
  CHECK(all.count("add") == 1);
  CHECK(all.count("h") == 1);
  CHECK(all.find("f")->parent == all.find("call f")->number);
  CHECK(all.find("f")->began_ns == 2'000);
  CHECK(all.find("f")->uncertainty_ns == 50);
  CHECK(all.find("add")->parent == all.find("f")->number);
  CHECK(all.find("h")->parent == all.find("call g#remote_op: call h")->number);
  CHECK(all.count("call g#remote_op: g") == 1);
  REQUIRE(all.clocks.size() == 1);
  CHECK(all.clocks[0].uncertainty_ns == 50);
  const auto path = profiler::critical_path(all, all.find("call f")->number);
  CHECK(std::any_of(path.begin(), path.end(), [](const profiler::path_step& each) { return each.node == 1; }));
  expect_error(errc::invalid_argument, "worker 1",
               [&] { (void)profiler::chrome_trace(all, {.largest_uncertainty = std::chrono::nanoseconds(10)}); });
  SUBCASE("what a worker has not recorded itself stays as the reply brought it") {
    second.events.erase(second.events.begin(), second.events.begin() + 2);
    const profile less = profiler::merged_group({first, second}, {{1, ahead, 50, 1}});
    CHECK(less.count("call f#remote_op: f") == 1);
    CHECK(less.count("call f#remote_op: add") == 1);
  }
  SUBCASE("a number that is used again is that of the call that was under way") {
    second.events.push_back(event_of("other", range_kind::handler, 1, 9, 0, ahead + 8'000, ahead + 8'100));
    second.events.back().peer = 0;
    second.events.back().call = 7;
    const profile more = profiler::merged_group({first, second}, {{1, ahead, 50, 1}});
    CHECK(more.find("other")->parent == 0);
    CHECK(more.find("f")->parent == more.find("call f")->number);
  }
  SUBCASE("what is missing or cannot be is an error") {
    expect_error(errc::invalid_argument, "worker 1", [&] { (void)profiler::merged_group({first, second}, {}); });
    expect_error(errc::invalid_argument, "two profiles", [&] { (void)profiler::merged_group({first, first}, {}); });
    expect_error(errc::invalid_argument, "worker 1", [&] {
      (void)profiler::merged_group({first, second}, {{1, 0, -1, 0}});
    });
  }
  SUBCASE("of none") { CHECK(profiler::merged_group({}, {}).events.empty()); }
}

TEST_CASE("many calls between the same two workers are linked to their handlers") {
  // Each call f of worker 0 to worker 1, which is not recorded itself, makes the call h back. Then comes a call g to worker
  // 2, always of the same number.
  constexpr std::uint64_t calls = 20'000;
  constexpr std::int64_t pause = 10'000;
  profile one;
  one.node = 0;
  one.ended_ns = static_cast<std::int64_t>(calls) * pause;
  profile third;
  third.node = 2;
  for (std::uint64_t i = 0; i != calls; ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * pause;
    const std::uint64_t number = 1 + 6 * i;
    one.events.push_back(event_of("f", range_kind::call, 0, number, 0, at, at + 9'000));
    one.events.back().peer = 1;
    one.events.back().call = 1 + i;
    one.events.push_back(
        event_of("f#remote_op: f", range_kind::handler, 1, number + 1, number, at + 1'000, at + 8'000));
    one.events.push_back(
        event_of("f#remote_op: h", range_kind::call, 1, number + 2, number + 1, at + 2'000, at + 7'000));
    one.events.push_back(event_of("f#remote_op: h#remote_op: h", range_kind::handler, 0, number + 3, number + 2,
                                  at + 3'000, at + 6'000));
    for (std::size_t remote = one.events.size() - 3; remote != one.events.size(); ++remote) {
      one.events[remote].remote = true;
      one.events[remote].uncertainty_ns = 100;
    }
    one.events.push_back(event_of("h", range_kind::handler, 0, number + 4, 0, at + 3'050, at + 6'050));
    one.events.back().peer = 1;
    one.events.back().call = 7;
    one.events.push_back(event_of("call g", range_kind::call, 0, number + 5, 0, at + 9'100, at + 9'900));
    one.events.back().peer = 2;
    one.events.back().call = 9;
    third.events.push_back(event_of("g", range_kind::handler, 2, 1 + i, 0, at + 9'200, at + 9'800));
    third.events.back().peer = 0;
    third.events.back().call = 9;
  }
  const profile linked = profiler::merged_group({one, third}, {{.node = 2}});
  CHECK(linked.events.size() == 6 * calls);
  CHECK(linked.count("f#remote_op: h#remote_op: h") == 0);
  std::unordered_map<std::uint64_t, const event*> made;
  for (const event& each : linked.events) made.emplace(each.number, &each);
  std::uint64_t right = 0;
  for (const event& each : linked.events) {
    if (each.name != "h" && each.name != "g") continue;
    const auto parent = made.find(each.parent);
    if (parent != made.end() && parent->second->began_ns == each.began_ns - (each.name == "h" ? 1'050 : 100)) ++right;
  }
  CHECK(right == 2 * calls);
}

TEST_CASE("real processes that record themselves give one profile, with calls linked across them") {
  rpc_test::process_group group(3);
  const auto at = [](int rank) { return ferry_test::worker_name(rank); };
  process_scope own(group.self, {.remote = false});
  own.enter();
  for (int rank = 1; rank != 3; ++rank) group.self.rpc_sync<enter_here>(at(rank));
  std::vector<std::thread> threads;
  for (int rank = 1; rank != 3; ++rank) {
    for (int i = 0; i != 2; ++i) {
      threads.emplace_back([&, rank] {
        const profiler::range loop("main loop");
        for (int round = 0; round != 5; ++round) {
          (void)group.self.rpc_sync<triple>(at(rank), some_numbers());
          (void)group.self.rpc_sync<triple_at>(at(rank), some_numbers(), at(3 - rank));
        }
      });
    }
  }
  for (std::thread& each : threads) each.join();
  std::vector<profile> recorded{own.exit()};
  std::vector<profiler::clock_offset> clocks;
  for (int rank = 1; rank != 3; ++rank) {
    const auto bytes = group.self.rpc_sync<exit_here>(at(rank));
    recorded.push_back(detail::decode_profile(bytes, {}));
    CHECK(recorded.back().node == rank);
    const std::int64_t sent = clock_here();
    const std::int64_t there = group.self.rpc_sync<clock_here>(at(rank));
    const std::int64_t answered = clock_here();
    clocks.push_back({rank, there - (sent + answered) / 2, (answered - sent + 1) / 2, 1});
  }
  const profile all = profiler::merged_group(std::move(recorded), clocks);
  check_structure(all);
  CHECK(all.lost == 0);
  CHECK(count_if(all, range_kind::user, "main loop") == 4);
  // Of 20 rounds: two calls from here, one of which makes another.
  CHECK(count_if(all, range_kind::handler, "triple_at") == 20);
  CHECK(count_if(all, range_kind::handler, "triple") == 60);
  std::size_t linked = 0;
  for (const event& each : all.events) {
    if (each.kind != range_kind::handler || each.name.find("triple") == std::string::npos) continue;
    const event* call = all.find(each.parent);
    REQUIRE(call != nullptr);
    CHECK(call->kind == range_kind::call);
    CHECK(call->node == each.peer);
    CHECK(call->peer == each.node);
    CHECK(call->name.find(each.name) != std::string::npos);
    const event* around = all.find(call->parent);
    REQUIRE(around != nullptr);
    CHECK(around->node == call->node);
    ++linked;
  }
  CHECK(linked == 60);
  const std::string trace = profiler::chrome_trace(all, {.largest_uncertainty = std::chrono::seconds(10)});
  if (const char* path = std::getenv("FERRY_TEST_TRACE")) std::ofstream(path) << trace;
  group.leave();
}

}  // namespace process_scope_test

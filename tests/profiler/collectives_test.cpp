// Collectives in profiles, and the waits of threads.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "event_of.hpp"
#include "expect_error.hpp"
#include "gate.hpp"

namespace profiled_collectives_test {

namespace profiler = ferry::profiler;
using ferry::errc;
using ferry::process_group;
using ferry::range_kind;
using ferry_test::cluster;
using profiler::event;
using profiler::process_scope;
using profiler::profile;
using profiler_test::event_of;

std::vector<const event*> events_of(const profile& from, range_kind kind, std::string_view name) {
  std::vector<const event*> found;
  for (const event& each : from.events) {
    if (each.kind == kind && each.name == name) found.push_back(&each);
  }
  return found;
}
// One event of each of these workers, all of one collective.
void check_collective(const profile& from, std::string_view name, const std::set<std::int32_t>& nodes) {
  CAPTURE(name);
  std::set<std::int32_t> seen;
  std::set<std::uint64_t> numbers;
  for (const event* each : events_of(from, range_kind::collective, name)) {
    CHECK(seen.insert(each->node).second);
    numbers.insert(each->call);
    CHECK_FALSE(each->failed);
    CHECK(each->ended_ns >= each->began_ns);
  }
  CHECK(seen == nodes);
  CHECK(numbers.size() == 1);
  CHECK_FALSE(numbers.contains(0));
}

int twice(int value) { return 2 * value; }

TEST_CASE("collectives are events of their members, their messages are none") {
  for (const std::size_t shared_bytes : {std::size_t{1} << 20U, std::size_t{0}}) {
    CAPTURE(shared_bytes);
    cluster group(3);
    process_scope scope(group[0], {.shapes = true, .memory = true});
    scope.enter();
    group.each([&](ferry::worker& self) {
      const process_group trainers(self, ferry::all_workers, {.name = "trainers", .shared_bytes = shared_bytes});
      trainers.all_reduce(ferry::ones({2, 3})).get();
      (void)trainers.all_gather(ferry::ones({4})).get();
      trainers.barrier().get();
      if (trainers.rank() == 0) trainers.send(ferry::ones({5}), 2).get();
      if (trainers.rank() == 2) trainers.receive(ferry::ones({5}), 0).get();
      self.barrier();
    });
    const profile found = scope.exit();
    for (const std::string_view name : {"all_reduce#trainers", "all_gather#trainers", "barrier#trainers", "barrier"})
      check_collective(found, name, {0, 1, 2});
    const auto sent = events_of(found, range_kind::collective, "send#trainers");
    const auto received = events_of(found, range_kind::collective, "receive#trainers");
    REQUIRE(sent.size() == 1);
    REQUIRE(received.size() == 1);
    CHECK(sent[0]->node == 0);
    CHECK(received[0]->node == 2);
    CHECK(sent[0]->call == received[0]->call);
    for (const event& each : found.events) CHECK_MESSAGE(each.name.find("ferry/g") == std::string::npos, each.name);
    const auto reduced = events_of(found, range_kind::collective, "all_reduce#trainers");
    CHECK(reduced[0]->shapes == "[[2, 3]]");
    CHECK(reduced[0]->bytes == 24);
    CHECK(events_of(found, range_kind::collective, "barrier#trainers")[0]->bytes == -1);
    const std::string trace = profiler::chrome_trace(found, {.largest_uncertainty = std::chrono::seconds(10)});
    CHECK(trace.find(R"("cat":"collective")") != std::string::npos);
  }
}

TEST_CASE("a session has the collectives of its code, within what they are called in") {
  cluster group(2);
  group.each([&](ferry::worker& self) {
    const process_group both(self);
    both.barrier().get();
    profiler::session recorded(self);
    {
      const profiler::range step("step");
      both.all_reduce(ferry::ones({2})).get();
    }
    const profile found = recorded.finish();
    const auto reduced = events_of(found, range_kind::collective, "all_reduce#group");
    REQUIRE(reduced.size() == 1);
    const event* step = found.find("step");
    REQUIRE(step != nullptr);
    CHECK(reduced[0]->parent == step->number);
    CHECK(reduced[0]->node == self.id().value);
    CHECK(found.workers.at(static_cast<std::size_t>(self.id().value)) == self.name());
  });
}

TEST_CASE("a collective that fails is marked") {
  cluster group(2);
  process_scope scope(group[0]);
  group.each([&](ferry::worker& self) {
    const process_group both(self);
    both.barrier().get();
    self.barrier();
    if (both.rank() == 0) scope.enter();
    self.barrier();
    expect_error(errc::group_mismatch, "all_reduce", [&] { both.all_reduce(ferry::ones({both.rank() + 1})).get(); });
  });
  const profile found = scope.exit();
  const auto reduced = events_of(found, range_kind::collective, "all_reduce#group");
  REQUIRE(reduced.size() == 2);
  for (const event* each : reduced) CHECK(each->failed);
}

TEST_CASE("a member that comes late to a collective is named, and what others wait is no work") {
  cluster group(3);
  std::vector<profile> of_each(3);
  group.each([&](ferry::worker& self) {
    const process_group all(self);
    profiler::session recorded(self);
    if (all.rank() == 2) {
      // Until both others wait.
      for (const int other : {0, 1}) {
        while (group[other].pending_collectives().empty()) std::this_thread::yield();
      }
      const profiler::range work("own work");
      const auto until = ferry::clock::now() + std::chrono::milliseconds(5);
      while (ferry::clock::now() < until) std::this_thread::yield();
    }
    all.all_reduce(ferry::ones({4})).get();
    of_each.at(static_cast<std::size_t>(all.rank())) = recorded.finish();
  });
  std::vector<profiler::clock_offset> clocks;
  for (const std::int32_t node : {1, 2}) clocks.push_back({.node = node});
  const profile found = profiler::merged_group(std::move(of_each), clocks);
  std::vector<std::int64_t> began(3);
  for (const event* each : events_of(found, range_kind::collective, "all_reduce#group"))
    began.at(static_cast<std::size_t>(each->node)) = each->began_ns;
  const profiler::summary all = profiler::summarise(found);
  REQUIRE(all.workers.size() == 3);
  CHECK(all.straggler == 2);
  // The others waited until it came, from when their threads began to.
  std::int64_t longest = 0;
  for (const event* each : events_of(found, range_kind::wait, "future::wait")) {
    if (each->node == 2) continue;
    const std::int64_t waited = began[2] - std::max({each->began_ns, began[0], began[1]});
    longest = std::max(longest, waited);
    const profiler::worker_share& share = all.workers.at(static_cast<std::size_t>(each->node));
    CHECK(share.waiting_ns >= waited);
    CHECK(share.waiting_ns + share.communication_ns <= each->duration_ns());
    CHECK(share.compute_ns == 0);
  }
  CHECK(all.workers[2].held_up_ns == std::max<std::int64_t>(longest, 0));
  CHECK(all.workers[0].held_up_ns + all.workers[1].held_up_ns == 0);
  if (longest <= 0) return;  // their threads had not come to wait before the late one came
  CHECK(profiler::table(found).find("held up others us") != std::string::npos);
  CHECK(profiler::html_page(found, {.largest_uncertainty = std::chrono::seconds(10)}).find("held up others") !=
        std::string::npos);
}

TEST_CASE("a thread that waits for a future is recorded, one that only looks is not") {
  cluster group(1);
  profiler::session recorded(group[0]);
  {
    const profiler::range around("around");
    ferry::promise<int> result;
    const ferry::future<int> waited = result.get_future();
    for (int i = 0; i != 3; ++i) CHECK_FALSE(waited.wait_for(std::chrono::nanoseconds(0)));
    CHECK(group[0].rpc_sync<twice>(0, 4) == 8);
    ferry_test::gate started;
    std::thread other([&] {
      started.pass();
      result.set_value(7);
    });
    started.open();
    CHECK(waited.get() == 7);
    other.join();
  }
  {
    ferry::promise<int> never;
    CHECK_FALSE(never.get_future().wait_for(std::chrono::milliseconds(1)));
  }
  const profile found = recorded.finish();
  const auto waits = events_of(found, range_kind::wait, "future::wait");
  // The first may have been completed before it was waited for.
  REQUIRE(waits.size() >= 1);
  REQUIRE(waits.size() <= 2);
  CHECK(waits.back()->duration_ns() > 0);
  CHECK(waits.back()->parent == 0);
  if (waits.size() == 2) CHECK(waits.front()->parent == found.find("around")->number);
}

// ---------------------------------------------------------------- profiles made by hand

// Of two workers: the second comes 6 ms later.
profile late_collective() {
  const auto ms = [](int count) { return std::int64_t{count} * 1'000'000; };
  profile made;
  made.node = 0;
  made.ended_ns = ms(12);
  made.events.push_back(event_of("step", range_kind::user, 0, 1, 0, 0, ms(10)));
  made.events.push_back(event_of("all_reduce#g", range_kind::collective, 0, 2, 1, ms(1), ms(9)));
  made.events.push_back(event_of("future::wait", range_kind::wait, 0, 3, 1, ms(2), ms(9)));
  made.events.push_back(event_of("add", range_kind::operation, 0, 4, 1, ms(1), ms(2)));
  made.events.push_back(event_of("step", range_kind::user, 1, 5, 0, 0, ms(12)));
  made.events.push_back(event_of("all_reduce#g", range_kind::collective, 1, 6, 5, ms(7), ms(9)));
  made.events[1].call = made.events[5].call = 77;
  return made;
}

TEST_CASE("collectives count as waiting until all have called them, as communication from then on") {
  profile from = late_collective();
  profiler::summary found = profiler::summarise(from);
  REQUIRE(found.workers.size() == 2);
  // As far as the thread waits.
  CHECK(found.workers[0].waiting_ns == 5'000'000);
  CHECK(found.workers[0].communication_ns == 2'000'000);
  CHECK(found.workers[0].compute_ns == 3'000'000);
  CHECK(found.workers[0].held_up_ns == 0);
  CHECK(found.workers[1].waiting_ns == 0);
  CHECK(found.workers[1].communication_ns == 2'000'000);
  CHECK(found.workers[1].compute_ns == 10'000'000);
  CHECK(found.workers[1].held_up_ns == 5'000'000);
  CHECK(found.straggler == 1);
  // The profile of one member alone does not tell when the others came.
  from.events.resize(4);
  found = profiler::summarise(from);
  CHECK(found.workers[0].communication_ns == 7'000'000);
  CHECK(found.workers[0].waiting_ns == 0);
  CHECK(found.workers[0].held_up_ns == 0);
  CHECK(profiler::table(from).find("held up") == std::string::npos);
  // What no call and no collective accounts for is waiting.
  from.events.erase(from.events.begin() + 1);
  CHECK(profiler::summarise(from).workers[0].waiting_ns == 7'000'000);
}

TEST_CASE("what runs beside a collective is work, wherever the collective is waited for") {
  const auto ms = [](int count) { return std::int64_t{count} * 1'000'000; };
  // Begun in one part of the step, and waited for in the next one, which first does something else.
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{0}}) {
    CAPTURE(step);
    profile from;
    from.ended_ns = ms(100);
    if (step != 0) from.events.push_back(event_of("step", range_kind::user, 0, 1, 0, 0, ms(100)));
    from.events.push_back(event_of("backward", range_kind::user, 0, 2, step, 0, ms(60)));
    from.events.push_back(event_of("all_reduce#g", range_kind::collective, 0, 3, 2, ms(10), ms(90)));
    from.events.push_back(event_of("optimizer", range_kind::user, 0, 4, step, ms(60), ms(100)));
    from.events.push_back(event_of("future::wait", range_kind::wait, 0, 5, 4, ms(80), ms(90)));
    // One that was there when it was fetched.
    from.events.push_back(event_of("all_reduce#g", range_kind::collective, 0, 6, 2, ms(20), ms(50)));
    const profiler::summary found = profiler::summarise(from);
    CHECK(found.workers[0].compute_ns == ms(90));
    CHECK(found.workers[0].communication_ns == ms(10));
    CHECK(found.workers[0].waiting_ns == 0);
    // The path of the part that waits leads through what it waits for.
    const auto path = profiler::critical_path(from, 4);
    REQUIRE(path.size() >= 2);
    CHECK(path[path.size() - 2].event == 3);
    CHECK(path[path.size() - 2].to_ns == ms(90));
  }
}

TEST_CASE("a late member of a collective that failed, or that no thread waited for, has held up no other") {
  profile from = late_collective();
  from.events[2].ended_ns = 8'000'000;  // the wait was for something else
  CHECK(profiler::summarise(from).workers[1].held_up_ns == 0);
  from = late_collective();
  from.events[1].failed = true;
  CHECK(profiler::summarise(from).workers[1].held_up_ns == 0);
  from = late_collective();
  from.events[1].ended_ns = from.events[2].ended_ns = 4'000'000;  // gave up
  CHECK(profiler::summarise(from).workers[1].held_up_ns == 2'000'000);
}

TEST_CASE("a barrier of workers holds its thread, though that waits for no future") {
  profile from = late_collective();
  from.events[1].name = from.events[5].name = "barrier";
  from.events.erase(from.events.begin() + 2, from.events.begin() + 4);  // the wait and the operation
  const profiler::summary found = profiler::summarise(from);
  CHECK(found.workers[0].waiting_ns == 6'000'000);
  CHECK(found.workers[0].communication_ns == 2'000'000);
  CHECK(found.workers[0].compute_ns == 2'000'000);
  CHECK(found.workers[1].held_up_ns == 6'000'000);
}

TEST_CASE("where nothing but a wait was recorded, its path is what it waited for") {
  profile from;
  from.ended_ns = 100'000;
  from.events.push_back(event_of("future::wait", range_kind::wait, 0, 1, 0, 0, 100'000));
  auto path = profiler::critical_path(from, 1);
  REQUIRE(path.size() == 1);
  CHECK(path[0].what == profiler::path_time::waiting);
  from.events.push_back(event_of("rpc_async#f(a -> b)", range_kind::call, 0, 2, 0, 10'000, 90'000));
  path = profiler::critical_path(from, 1);
  REQUIRE(path.size() == 3);
  CHECK(path[1].event == 2);
  CHECK(path[1].what == profiler::path_time::communication);
  CHECK(profiler::longest_event(from)->number == 2);
}

TEST_CASE("calls of a thread that waits often are looked up, not searched") {
  profile from;
  constexpr std::int64_t calls = 50'000;
  from.ended_ns = calls * 100;
  from.events.push_back(event_of("all", range_kind::user, 0, 1, 0, 0, calls * 100));
  for (std::int64_t i = 0; i != calls; ++i) {
    const auto number = static_cast<std::uint64_t>(2 * i + 2);
    from.events.push_back(event_of("rpc_async#f(a -> b)", range_kind::call, 0, number, 1, 100 * i + 10, 100 * i + 80));
    from.events.push_back(event_of("future::wait", range_kind::wait, 0, number + 1, 1, 100 * i + 20, 100 * i + 90));
  }
  // Each step would take minutes if it looked at all waits.
  CHECK(profiler::critical_path(from, 1).size() == 3 * calls + 1);
  const profiler::summary found = profiler::summarise(from);
  CHECK(found.workers[0].communication_ns == 60 * calls);
  CHECK(found.workers[0].waiting_ns == 10 * calls);
  CHECK(found.workers[0].compute_ns == 30 * calls);
}

TEST_CASE("the critical path through a collective says for how long others had not called it") {
  const profile from = late_collective();
  std::vector<std::string> steps;
  for (const profiler::path_step& each : profiler::critical_path(from, 1)) {
    steps.push_back(std::to_string(each.event) + " " + std::to_string(static_cast<int>(each.what)) + " " +
                    std::to_string(each.from_ns / 1'000'000) + "-" + std::to_string(each.to_ns / 1'000'000));
  }
  using enum profiler::path_time;
  const auto text = [](int number, profiler::path_time what, const std::string& when) {
    return std::to_string(number) + " " + std::to_string(static_cast<int>(what)) + " " + when;
  };
  CHECK(steps == std::vector<std::string>{text(1, compute, "0-1"), text(2, waiting, "1-7"),
                                          text(2, communication, "7-9"), text(1, compute, "9-10")});
}

TEST_CASE("arrows of a call that began on another thread than it ended on have slices at their ends") {
  profile from;
  from.ended_ns = 10'000'000;
  from.events.push_back(event_of("rpc_async#f(a -> b)", range_kind::call, 0, 1, 0, 1'000'000, 9'000'000));
  from.events.back().thread = 33;
  from.events.back().began_thread = 22;
  from.events.push_back(event_of("f", range_kind::handler, 1, 2, 1, 3'000'000, 8'000'000));
  const std::string text = profiler::chrome_trace(from);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  CHECK(has(R"--({"ph":"b","name":"rpc_async#f(a -> b)","cat":"call","id":1,"pid":0,"tid":22,"ts":1000.000,)--"));
  CHECK(has(R"--({"ph":"e","name":"rpc_async#f(a -> b)","cat":"call","id":1,"pid":0,"tid":22,"ts":9000.000})--"));
  CHECK(has(
      R"--({"ph":"X","name":"rpc_async#f(a -> b): sent","cat":"mark","pid":0,"tid":22,"ts":1000.000,"dur":0.001,)--"));
  CHECK(has(R"--({"ph":"s","name":"request","cat":"flow","id":4,"pid":0,"tid":22,"ts":1000.000})--"));
  CHECK(has(
      R"--({"ph":"X","name":"rpc_async#f(a -> b): answered","cat":"mark","pid":0,"tid":33,"ts":9000.000,"dur":0.001,)--"));
  CHECK(has(R"--({"ph":"f","name":"reply","cat":"flow","id":5,"pid":0,"tid":33,"ts":9000.000,"bp":"e"})--"));
  CHECK_FALSE(has(R"--("name":"f: begun")--"));
  // The page draws it where it began.
  CHECK(profiler::html_page(from).find("thread 22") != std::string::npos);
  CHECK(profiler::html_page(from).find("thread 33") == std::string::npos);
}

}  // namespace profiled_collectives_test

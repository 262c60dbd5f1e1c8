// What an event took its time for, on profiles made by hand.

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/base/error.hpp>
#include <ferry/profiler.hpp>

#include "expect_error.hpp"

namespace critical_path_test {

namespace profiler = ferry::profiler;
using ferry::range_kind;
using profiler::event;
using profiler::path_step;
using profiler::path_time;
using profiler::profile;

constexpr std::int64_t no_queue = 0;

// Times in microseconds.
void add(profile& to, range_kind kind, std::int32_t node, std::uint64_t number, std::uint64_t parent, std::int64_t from,
         std::int64_t until, std::int64_t queued = no_queue) {
  event& made = to.events.emplace_back();
  made.name = "event " + std::to_string(number);
  made.kind = kind;
  made.node = node;
  made.number = number;
  made.parent = parent;
  made.began_ns = 1000 * from;
  made.ended_ns = 1000 * until;
  made.queued_ns = 1000 * queued;
}

std::string name_of(path_time what) {
  switch (what) {
    case path_time::compute: return "computes";
    case path_time::communication: return "communicates";
    case path_time::queueing: return "queues";
    case path_time::waiting: return "waits";
  }
  return "";
}

// "1 computes 2-3, ...": the number of the event, and microseconds.
std::string text_of(const std::vector<path_step>& path) {
  std::string text;
  for (const path_step& each : path) {
    if (!text.empty()) text += ", ";
    text += std::to_string(each.event) + " " + name_of(each.what) + " " + std::to_string(each.from_ns / 1000) + "-" +
            std::to_string(each.to_ns / 1000);
  }
  return text;
}
std::string path_of(const profile& from, std::uint64_t number) {
  return text_of(profiler::critical_path(from, number));
}

TEST_CASE("the path of a call is under way, in the queue, in the handler and what that runs") {
  profile of;
  add(of, range_kind::user, 0, 1, 0, 0, 100);
  add(of, range_kind::call, 0, 2, 1, 10, 90);
  add(of, range_kind::handler, 1, 3, 2, 30, 80, 5);
  add(of, range_kind::operation, 1, 4, 3, 40, 60);
  CHECK(path_of(of, 1) ==
        "1 computes 0-10, 2 communicates 10-25, 3 queues 25-30, 3 computes 30-40, 4 computes 40-60, 3 computes 60-80, "
        "2 communicates 80-90, 1 computes 90-100");
  CHECK(path_of(of, 4) == "4 computes 40-60");
  CHECK(profiler::critical_path(of, 1)[3].node == 1);
}

TEST_CASE("a call that ended while the thread did something else is not on the path, if threads wait there at all") {
  profile of;
  add(of, range_kind::user, 0, 1, 0, 0, 100);
  add(of, range_kind::call, 0, 2, 1, 10, 50);
  CHECK(path_of(of, 1) == "1 computes 0-10, 2 communicates 10-50, 1 computes 50-100");
  add(of, range_kind::call, 0, 3, 1, 55, 80);
  add(of, range_kind::wait, 0, 4, 1, 70, 80);
  CHECK(path_of(of, 1) == "1 computes 0-55, 3 communicates 55-80, 1 computes 80-100");
  of.events[1].name = "rpc_sync#f(a -> b)";  // has held the thread
  CHECK(path_of(of, 1) ==
        "1 computes 0-10, 2 communicates 10-50, 1 computes 50-55, 3 communicates 55-80, 1 computes 80-100");
}

TEST_CASE("an asynchronous call that outlives what has made it is a part of what is around that") {
  profile of;
  add(of, range_kind::autograd, 0, 1, 0, 0, 100);
  add(of, range_kind::user, 0, 2, 1, 10, 40);
  add(of, range_kind::user, 0, 3, 2, 15, 30);
  add(of, range_kind::call, 0, 4, 3, 20, 90);
  add(of, range_kind::handler, 1, 5, 4, 30, 80);
  add(of, range_kind::wait, 0, 6, 1, 45, 95);
  CHECK(path_of(of, 1) ==
        "1 computes 0-20, 4 communicates 20-30, 5 computes 30-80, 4 communicates 80-90, 6 waits 90-95, "
        "1 computes 95-100");
  // The wait is explained by the call; what the call's maker did beside it is work.
  const profiler::summary found = profiler::summarise(of);
  CHECK(found.workers[0].waiting_ns + found.workers[0].communication_ns == 50'000);
  CHECK(found.workers[0].compute_ns == 50'000);
}

TEST_CASE("of calls that run at the same time the last to end is on the path") {
  profile of;
  add(of, range_kind::user, 0, 1, 0, 0, 100);
  add(of, range_kind::call, 0, 2, 1, 10, 50);
  add(of, range_kind::handler, 1, 3, 2, 20, 40);
  add(of, range_kind::call, 0, 4, 1, 12, 95);
  add(of, range_kind::handler, 2, 5, 4, 20, 90);
  CHECK(path_of(of, 1) ==
        "1 computes 0-12, 4 communicates 12-20, 5 computes 20-90, 4 communicates 90-95, 1 computes 95-100");
}

TEST_CASE("what had not ended when the next part began, or the whole did, was not waited for") {
  profile of;
  add(of, range_kind::user, 0, 1, 0, 0, 100);
  add(of, range_kind::call, 0, 2, 1, 10, 60);
  add(of, range_kind::call, 0, 3, 1, 40, 90);
  add(of, range_kind::operation, 0, 4, 1, 0, 5);
  add(of, range_kind::call, 0, 5, 1, 95, 200);  // is not over when the range is
  CHECK(path_of(of, 1) == "4 computes 0-5, 1 computes 5-40, 3 communicates 40-90, 1 computes 90-100");
}

TEST_CASE("the path of a pass leads through the workers that it waits for, and names the one that was slow") {
  profile of;
  add(of, range_kind::autograd, 0, 1, 0, 0, 100);
  add(of, range_kind::operation, 0, 2, 1, 2, 4);
  add(of, range_kind::wait, 0, 3, 1, 10, 98);
  add(of, range_kind::operation, 0, 4, 3, 90, 95);  // the thread that waits works, too
  for (const std::int32_t node : {1, 2}) {
    const auto first = static_cast<std::uint64_t>(10 * node);
    const std::int64_t slow = node == 2 ? 50 : 0;
    add(of, range_kind::call, 0, first, 1, 5 + node, 30 + slow);
    add(of, range_kind::handler, node, first + 1, first, 10 + node, 28 + slow);
    add(of, range_kind::autograd, node, first + 2, first + 1, 12 + node, 20 + slow);
  }
  CHECK(path_of(of, 1) ==
        "1 computes 0-2, 2 computes 2-4, 1 computes 4-7, 20 communicates 7-12, 21 computes 12-14, 22 computes 14-70, "
        "21 computes 70-78, "
        "20 communicates 78-80, 3 waits 80-90, 4 computes 90-95, 3 waits 95-98, 1 computes 98-100");
  of.ended_ns = 100'000;
  of.workers = {"root", "quick", "slow"};
  const std::string text = profiler::table(of);
  CAPTURE(text);
  CHECK(text.find("the critical path of event 1, 100.0 us") != std::string::npos);
  CHECK(text.find("          56.0   56.0%       1  compute     slow") != std::string::npos);
  CHECK(text.find("quick" + std::string(19, ' ') + "event") == std::string::npos);  // is not on it
}

TEST_CASE("times of another clock that lie outside of the call are cut off") {
  profile of;
  add(of, range_kind::call, 0, 1, 0, 10, 20);
  add(of, range_kind::handler, 1, 2, 1, 5, 30, 3);
  CHECK(path_of(of, 1) == "2 computes 10-20");
  add(of, range_kind::call, 0, 3, 0, 40, 50);
  add(of, range_kind::handler, 1, 4, 3, 45, 48, 20);
  CHECK(path_of(of, 3) == "4 queues 40-45, 4 computes 45-48, 3 communicates 48-50");
}

TEST_CASE(
    "an event without parts is its own path; one that takes no time has none, one that does not exist is an error") {
  profile of;
  add(of, range_kind::operation, 0, 1, 0, 10, 20);
  add(of, range_kind::operation, 0, 2, 0, 30, 30);
  CHECK(path_of(of, 1) == "1 computes 10-20");
  CHECK(profiler::critical_path(of, 2).empty());
  expect_error(ferry::errc::invalid_argument, "the profile has no event 3",
               [&] { (void)profiler::critical_path(of, 3); });
  CHECK(profiler::longest_event(of) == &of.events.front());
  CHECK(profiler::longest_event(profile()) == nullptr);
  // Longer ones that are done for others.
  add(of, range_kind::handler, 0, 3, 0, 0, 100);
  add(of, range_kind::wait, 0, 4, 0, 0, 1000);
  CHECK(profiler::longest_event(of) == &of.events.front());
  of.events.erase(of.events.begin(), of.events.begin() + 2);
  CHECK(profiler::longest_event(of)->number == 3);
  of.events.erase(of.events.begin());
  CHECK(profiler::longest_event(of)->number == 4);
}

TEST_CASE("whatever the events are, a path goes through the whole event without gaps, and ends") {
  std::mt19937 random(20);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(limit));
  };
  for (int i = 0; i != 400; ++i) {
    profile of;
    const std::int64_t events = 2 + below(30);
    for (std::int64_t number = 1; number <= events; ++number) {
      const std::int64_t from = below(100);
      // Also parents in a circle.
      add(of, static_cast<range_kind>(below(6)), static_cast<std::int32_t>(below(3)),
          static_cast<std::uint64_t>(number), static_cast<std::uint64_t>(below(events + 1)), from, from + below(60),
          below(4) == 0 ? below(20) : no_queue);
    }
    for (const event& whole : of.events) {
      const std::vector<path_step> path = profiler::critical_path(of, whole.number);
      CAPTURE(i);
      CAPTURE(text_of(path));
      std::int64_t at = whole.began_ns;
      bool joined = true;
      for (const path_step& each : path) {
        joined = joined && each.from_ns == at && each.to_ns > at && of.find(each.event)->node == each.node;
        at = each.to_ns;
      }
      REQUIRE(joined);
      REQUIRE(at == whole.ended_ns);
    }
  }
}

}  // namespace critical_path_test

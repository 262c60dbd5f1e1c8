// When a worker is declared dead, at given times.

#include <chrono>

#include <doctest/doctest.h>

#include "backend/links/liveness.hpp"

namespace liveness_test {

using namespace std::chrono_literals;
using namespace ferry::detail;

namespace {
constexpr lease_rules rules{500ms, 5s};
const ferry::clock::time_point start{100s};
constexpr liveness_actions nothing{};
}  // namespace

TEST_CASE("a worker that nothing depends on is not watched") {
  liveness peer;
  CHECK(assess(peer, start, rules, true) == nothing);
  for (const auto stake : {0, 1, 2}) {
    liveness watched{.heard = start};
    if (stake == 0) watched.links = 1;
    if (stake == 1) watched.suspect = true;
    if (stake == 2) watched.awaited = true;
    CHECK(assess(watched, start, rules, true).open_control);
  }
}

TEST_CASE("a guarded worker that was never reached is queried in the log, at growing intervals") {
  liveness peer;
  peer.begin_guarding(start);
  const auto at = [&](std::chrono::nanoseconds later) {
    auto actions = assess(peer, start + later, rules, true);
    actions.open_control = false;
    return actions;
  };
  CHECK(at(5s) == nothing);
  CHECK(at(5001ms) == liveness_actions{.ask_log = true});
  SUBCASE("it does not answer") {
    peer.question = 17;
    peer.asked_at = start + 6s;
    CHECK(at(11s) == nothing);
    CHECK(at(11001ms) == liveness_actions{.read_log = true});
    peer.log_is_asked = true;
    CHECK(at(12s) == nothing);
  }
  SUBCASE("it answers") {
    peer.question = 17;
    peer.take_answer(start + 7s);
    CHECK(at(17s) == nothing);
    CHECK(at(17001ms) == liveness_actions{.ask_log = true});
    for (int i = 0; i != 100; ++i) peer.take_answer(start);
    CHECK(at(639s) == nothing);
    CHECK(at(641s) == liveness_actions{.ask_log = true});
  }
  SUBCASE("this process was suspended") {
    peer.allow_for_delay(start + 1h);
    CHECK(at(1h + 5s) == nothing);
    CHECK(at(1h + 6s) == liveness_actions{.ask_log = true});
  }
  SUBCASE("it is reached, from either side") {
    peer.question = 17;
    peer.control = true;
    peer.renew(start + 6s);
    CHECK(at(7s) == liveness_actions{.send_heartbeat = true});
    CHECK(peer.question == 0);
    CHECK(at(12s) == liveness_actions{.declare_lost = true});
  }
}

TEST_CASE("a connected worker gets heartbeats, whether or not this worker watches it") {
  liveness idle{.heard = start, .control = true};
  CHECK(assess(idle, start + 1h, rules, true) == liveness_actions{.send_heartbeat = true});
  // Without a control connection heartbeats use the calls' connection.
  liveness linked{.heard = start, .links = 1, .opening = true};
  CHECK(assess(linked, start, rules, true) == liveness_actions{.send_heartbeat = true});
}

TEST_CASE("one of the two opens the control connection, the other one only if that fails") {
  liveness first{.heard = start, .links = 1};
  CHECK(assess(first, start, rules, true).open_control);
  first.opening = true;
  CHECK_FALSE(assess(first, start, rules, true).open_control);

  // A third of the lease of 5 s has passed at the fourth tick.
  liveness second{.heard = start, .links = 1};
  for (int tick = 0; tick != 3; ++tick) CHECK_FALSE(assess(second, start, rules, false).open_control);
  CHECK(assess(second, start, rules, false).open_control);
  // A connection that was open, and then breaks, starts a new count.
  second.control = true;
  CHECK(assess(second, start, rules, false) == liveness_actions{.send_heartbeat = true});
  second.control = false;
  CHECK_FALSE(assess(second, start, rules, false).open_control);
  second.suspect = true;
  CHECK(assess(second, start, rules, false).open_control);
  // Also with the shortest lease there is enough time.
  constexpr lease_rules shortest{100ms, 500ms};
  liveness hurried{.heard = start, .links = 1};
  CHECK_FALSE(assess(hurried, start + 100ms, shortest, false).open_control);
  CHECK(assess(hurried, start + 200ms, shortest, false).open_control);
}

TEST_CASE("a lease starts at the last message") {
  liveness peer{.heard = start, .links = 1, .control = true};
  CHECK_FALSE(assess(peer, start + 5s, rules, true).declare_lost);
  CHECK(assess(peer, start + 5s + 1ns, rules, true) == liveness_actions{.declare_lost = true});
  peer.renew(start + 3s);
  CHECK_FALSE(assess(peer, start + 8s, rules, true).declare_lost);
  peer.renew(start + 1s);  // does not go back
  CHECK(peer.heard == start + 3s);
  CHECK(assess(peer, start + 8s + 1ns, rules, true).declare_lost);
  // Also while a connection is being opened: a worker that does not answer is silent.
  liveness opening{.heard = start, .suspect = true, .opening = true};
  CHECK(assess(opening, start + 6s, rules, true).declare_lost);
}

TEST_CASE("a tick that is late by more than an interval shows that this process stood still") {
  CHECK_FALSE(was_stalled(start, start + 500ms, rules));
  CHECK(was_stalled(start, start + 501ms, rules));
}

TEST_CASE("after this process stood still, others get a new lease") {
  liveness peer;
  peer.links = 1;
  peer.renew(start);
  peer.excuse(start + 6s, 2s, rules);  // silent for 4 s
  CHECK_FALSE(assess(peer, start + 11s, rules, true).declare_lost);
  CHECK(assess(peer, start + 11001ms, rules, true).declare_lost);
  peer.excuse(start + 1h, 1h - 10s, rules);  // suspended
  CHECK_FALSE(assess(peer, start + 1h + 5s, rules, true).declare_lost);
}

TEST_CASE("a silent worker is lost although this process stands still again and again") {
  std::chrono::nanoseconds stall{};
  SUBCASE("now and then") { stall = 600ms; }
  SUBCASE("for most of the time") { stall = 2s; }
  SUBCASE("for longer than a lease at a time") { stall = 7s; }
  liveness peer;
  peer.links = 1;
  peer.renew(start);
  auto now = start;
  int ticks = 0;
  do {
    now += rules.interval + stall;
    peer.excuse(now, stall, rules);
    REQUIRE(++ticks < 100);
  } while (!assess(peer, now, rules, true).declare_lost);
  // Twenty intervals are two leases; then one lease more.
  CHECK(ticks > 20);
  CHECK(ticks <= 20 + 1 + rules.lease / (rules.interval + stall) + 1);
  SUBCASE("but not one that is heard meanwhile") {
    peer.renew(now);
    peer.excuse(now + 10s, 9s, rules);
    CHECK_FALSE(assess(peer, now + 14s, rules, true).declare_lost);
  }
}

TEST_CASE("a question in the log gets new leases, too, when this process stood still") {
  liveness peer;
  peer.begin_guarding(start);
  peer.ask(17, start + 6s);
  peer.excuse(start + 1h, 59min + 50s, rules);
  CHECK(assess(peer, start + 1h + 5s, rules, true).read_log == false);
  CHECK(assess(peer, start + 1h + 5001ms, rules, true).read_log);
  SUBCASE("but not for ever") {
    auto now = start + 1h;
    int ticks = 0;
    do {
      now += rules.interval + 2s;
      peer.excuse(now, 2s, rules);
      REQUIRE(++ticks < 100);
    } while (!assess(peer, now, rules, true).read_log);
    CHECK(ticks > 10);
  }
}

}  // namespace liveness_test

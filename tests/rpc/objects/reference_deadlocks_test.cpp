// Handlers of exclusive objects that wait for each other: certain deadlocks are reported at once, other waits continue.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "tests/rpc/references/table/references.hpp"

namespace reference_deadlocks_test {

using ferry::errc;
using ferry::rref;
using ferry_test::captured_log;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
ferry_test::gate other_door;

enum class way : int { to_here, call, local_value, created, notify };

class desk;
int ask_at(const rref<desk>& other, int value);
int take_result(const rref<int>& result, way how);

class desk {
 public:
  int take(int value) { return count_ += value; }
  int take_at_door(int value) {
    door.pass();
    return count_ += value;
  }

  // Makes a result at its own object, and waits for it.
  int leave_and_wait(const rref<desk>& self, way how) {
    const rref<int> result = self.remote<&desk::take>(1);
    return take_result(result, how);
  }
  int leave_and_have_it_taken(const rref<desk>& self, const std::string& where) {
    return ferry::rpc_sync<&take_result>(where, self.remote<&desk::take>(1), way::to_here);
  }
  // The same with a result of the result.
  int leave_twice_and_wait(const rref<desk>& self) { return self.remote<&desk::take>(1).remote<plus>(1).to_here(); }
  rref<int> leave(const rref<desk>& self) { return self.remote<&desk::take>(1); }
  ferry::future<int> leave_and_ask_later(const rref<desk>& self);

  // Waits for the door while it has its turn, then calls the other object.
  int ask(const rref<desk>& other, int value) {
    door.pass();
    return other.rpc_sync<&desk::take>(value);
  }
  // Keeps its turn until the other door is open.
  int ask_and_stay(const rref<desk>& other, int value) {
    const int result = ask(other, value);
    other_door.pass();
    return result;
  }
  int ask_by_way_of(const std::string& where, const rref<desk>& other, int value) {
    door.pass();
    return ferry::rpc_sync<&ask_at>(where, other, value);
  }
  // Times out soon, and then waits at the other door.
  int ask_with_limit(const rref<desk>& other, int value) {
    try {
      return other.rpc_sync<&desk::take>({.timeout = 10ms}, value);
    } catch (const ferry::rpc_timeout&) {
      other_door.pass();
      return -1;
    }
  }
  void ask_one_way(const rref<desk>& other, int value) {
    door.pass();
    other.notify<&desk::take>(value);
  }
  // Calls the other object, and answers before that call is answered.
  void ask_and_leave(const rref<desk>& other, int value) {
    door.pass();
    (void)other.rpc_async<&desk::take>(value);
  }

 private:
  int count_ = 0;
};

class open_desk {
 public:
  int take(int value) { return count_ += value; }
  int ask(const rref<open_desk>& other, int value) {
    door.pass();
    return other.rpc_sync<&open_desk::take>(value);
  }
  int leave_and_wait(const rref<open_desk>& self) { return self.remote<&open_desk::take>(1).to_here(); }

 private:
  int count_ = 0;
};

int ask_at(const rref<desk>& other, int value) { return other.rpc_sync<&desk::take>(value); }

int take_result(const rref<int>& result, way how) {
  switch (how) {
    case way::to_here: return result.to_here();
    case way::call: return result.rpc_sync<plus>(1);
    case way::local_value: return result.local_value();
    case way::created: result.created().get(); return 0;
    case way::notify: result.notify<plus>(1); return 0;
  }
  throw std::logic_error("no such way");
}

ferry::future<int> desk::leave_and_ask_later(const rref<desk>& self) {
  // Nothing waits for it, not even the answer of this call.
  const auto later = self.remote<&desk::take>(1).to_here_async();
  later.add_done_callback([](const ferry::future<int>&) { door.arrive(); });
  return ferry::make_ready_future(7);
}

struct shut_door {
  shut_door() {
    door.reset();
    other_door.reset();
  }
  ~shut_door() {
    door.open();
    other_door.open();
  }
  shut_door(const shut_door&) = delete;
  shut_door& operator=(const shut_door&) = delete;
};

}  // namespace reference_deadlocks_test

template <>
struct ferry::object_traits<reference_deadlocks_test::desk> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<reference_deadlocks_test::open_desk> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace reference_deadlocks_test {

namespace {

// Number of requests of that function that are blocked and not cancelled.
int waits(const ferry::worker& at, const std::string& method) {
  int count = 0;
  for (const auto& each : at.served_calls()) {
    if (each.phase == ferry::served_phase::held && !each.unwanted &&
        (each.method + "'").find(method) != std::string::npos)
      ++count;
  }
  return count;
}

// The kind of its error; empty: none.
std::string outcome(const ferry::future<int>& of) {
  try {
    (void)of.get();
    return "";
  } catch (const ferry::error& e) {
    return std::string(ferry::errc_name(e.kind()));
  }
}

}  // namespace

TEST_CASE("a handler that waits for a result which waits for the handler gets would_deadlock at once") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.rpc_timeout = ferry::no_timeout; }});
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto d = group[0].remote<ferry::make<desk>>(where);
    const auto refused = [](auto&& use) { expect_error(errc::would_deadlock, "wait", use); };
    for (const way how : {way::to_here, way::call, way::local_value, way::created}) {
      CAPTURE(static_cast<int>(how));
      refused([&] { (void)d.rpc_sync<&desk::leave_and_wait>(d, how); });
    }
    refused([&] { (void)d.rpc_sync<&desk::leave_twice_and_wait>(d); });
    for (const char* through : {"worker0", "worker1", "worker2"}) {
      refused([&] { (void)d.rpc_sync<&desk::leave_and_have_it_taken>(d, through); });
    }
    // The text names the waiting calls and the remedy.
    for (const char* text : {"desk::take", "desk::leave_and_wait", "desk)", "object_traits", "has yet to be made"}) {
      expect_error(errc::would_deadlock, text, [&] { (void)d.rpc_sync<&desk::leave_and_wait>(d, way::to_here); });
    }
    CHECK(d.rpc_sync<&desk::take>(0) > 0);  // the results were made once each handler had ended
  }
}

TEST_CASE("a handler that makes a result at its own object and does not wait for it succeeds") {
  door.reset();
  cluster group(2);
  const auto d = group[0].remote<ferry::make<desk>>("worker1");
  CHECK(d.rpc_sync<&desk::leave>(d).to_here() == 1);
  CHECK(d.rpc_sync<&desk::leave_and_wait>(d, way::notify) == 0);
  CHECK(d.rpc_sync<&desk::leave_and_ask_later>(d) == 7);
  door.await_arrivals(1);
  await([&] { return d.rpc_sync<&desk::take>(0) == 3; });
  const auto open = group[0].remote<ferry::make<open_desk>>("worker1");
  CHECK(open.rpc_sync<&open_desk::leave_and_wait>(open) == 1);
  const auto other = group[0].remote<ferry::make<desk>>("worker1");
  CHECK(d.rpc_sync<&desk::leave_and_wait>(other, way::to_here) == 1);
}

TEST_CASE("two handlers that wait for each other's objects: one of them fails at once, and the other continues") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.rpc_timeout = ferry::no_timeout; }});
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    for (const bool through_another : {false, true}) {
      CAPTURE(through_another);
      const shut_door shut;
      const auto a = group[0].remote<ferry::make<desk>>(where);
      const auto b = group[0].remote<ferry::make<desk>>(where);
      auto first = through_another ? a.rpc_async<&desk::ask_by_way_of>("worker2", b, 1) : a.rpc_async<&desk::ask>(b, 1);
      auto second = b.rpc_async<&desk::ask>(a, 1);
      door.await_arrivals(2);
      door.open();
      const std::vector<std::string> ends{outcome(first), outcome(second)};
      CHECK(((ends[0].empty() && ends[1] == "would_deadlock") || (ends[1].empty() && ends[0] == "would_deadlock")));
      const auto& refused = ends[0].empty() ? second : first;
      for (const char* text : {"desk::ask", "desk::take", "which waits for this call", "object_traits"}) {
        expect_error(errc::would_deadlock, text, [&] { (void)refused.get(); });
      }
      CHECK(a.rpc_sync<&desk::take>(0) + b.rpc_sync<&desk::take>(0) == 1);
    }
  }
}

TEST_CASE("a cycle of several handlers is broken once") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.rpc_timeout = ferry::no_timeout; }});
  const shut_door shut;
  constexpr int size = 5;
  std::vector<rref<desk>> desks;
  for (int i = 0; i != size; ++i) desks.push_back(group[0].remote<ferry::make<desk>>("worker1"));
  std::vector<ferry::future<int>> calls;
  for (std::size_t i = 0; i != size; ++i) {
    calls.push_back(desks[i].rpc_async<&desk::ask>(desks[(i + 1) % size], 1));
  }
  door.await_arrivals(size);
  door.open();
  int refused = 0;
  for (const auto& each : calls) {
    const std::string end = outcome(each);
    CHECK((end.empty() || end == "would_deadlock"));
    if (!end.empty()) ++refused;
  }
  CHECK(refused == 1);
}

TEST_CASE("crossing calls that are one-way, have timeouts, or are reentrant all succeed") {
  cluster group(2);
  const shut_door shut;
  const auto a = group[0].remote<ferry::make<desk>>("worker1");
  const auto b = group[0].remote<ferry::make<desk>>("worker1");
  SUBCASE("one-way") {
    auto first = a.rpc_async<&desk::ask_one_way>(b, 1);
    auto second = b.rpc_async<&desk::ask>(a, 1);
    door.await_arrivals(2);
    door.open();
    first.get();
    CHECK(second.get() == 1);
    await([&] { return b.rpc_sync<&desk::take>(0) == 1; });
  }
  SUBCASE("asynchronous, and answered meanwhile") {
    auto first = a.rpc_async<&desk::ask_and_leave>(b, 1);
    auto second = b.rpc_async<&desk::ask>(a, 1);
    door.await_arrivals(2);
    door.open();
    first.get();
    CHECK(second.get() == 1);
    await([&] { return b.rpc_sync<&desk::take>(0) == 1; });
  }
  SUBCASE("one in a row behind the other") {
    // b waits for a, which waits for no other call.
    auto first = a.rpc_async<&desk::take_at_door>(1);
    auto second = b.rpc_async<&desk::ask>(a, 1);
    door.await_arrivals(2);
    auto third = a.rpc_async<&desk::take>(1);
    door.open();
    CHECK(first.get() >= 1);
    CHECK(second.get() >= 1);
    CHECK(third.get() >= 1);
    CHECK(a.rpc_sync<&desk::take>(0) == 3);
  }
  SUBCASE("reentrant") {
    const auto c = group[0].remote<ferry::make<open_desk>>("worker1");
    const auto d = group[0].remote<ferry::make<open_desk>>("worker1");
    auto first = c.rpc_async<&open_desk::ask>(d, 1);
    auto second = d.rpc_async<&open_desk::ask>(c, 1);
    door.await_arrivals(2);
    door.open();
    CHECK(first.get() == 1);
    CHECK(second.get() == 1);
  }
  SUBCASE("with a caller that has timed out before") {
    auto second = b.rpc_async<&desk::ask>(a, 1);
    door.await_arrivals(1);
    auto first = a.rpc_async<&desk::ask_with_limit>(b, 1);
    other_door.await_arrivals(1);
    door.open();
    await([&] { return second.ready() || waits(group[1], "desk::take'") == 1; });
    CHECK_FALSE(second.ready());
    other_door.open();
    CHECK(first.get() == -1);
    CHECK(second.get() == 1);
  }
}

TEST_CASE("many crossing handlers in an order without cycles are never refused") {
  cluster group(3, {.configure = [](ferry::worker_config& config) { config.max_blocked_handlers = 1024; }});
  door.reset();
  door.open();
  std::vector<rref<desk>> desks;
  for (int i = 0; i != 6; ++i) desks.push_back(group[0].remote<ferry::make<desk>>("worker1"));
  std::vector<ferry::future<int>> calls;
  for (int round = 0; round != 40; ++round) {
    for (std::size_t i = 0; i != desks.size(); ++i) {
      for (std::size_t j = i + 1; j != desks.size(); ++j) {
        calls.push_back(group[0].rpc_async<&ask_at>("worker2", desks[j], 1));
        calls.push_back(desks[i].rpc_async<&desk::ask>(desks[j], 1));
      }
    }
  }
  for (const auto& each : calls) CHECK(outcome(each).empty());
}

TEST_CASE("handlers at two owners that wait for each other end at their deadline, and the owners log the reason") {
  const captured_log logged(ferry::log_level::info);
  const shut_door shut;
  cluster group(3);
  const auto a = group[0].remote<ferry::make<desk>>("worker1");
  const auto b = group[0].remote<ferry::make<desk>>("worker2");
  // The handler with the shorter timeout gives up while the other one still waits for it; retry with a longer timeout
  // if a busy machine lets it expire before both wait.
  bool met = false;
  for (auto limit = 3s; !met; limit *= 2) {
    REQUIRE(limit < 100s);
    door.reset();
    other_door.reset();
    auto first = a.rpc_async<&desk::ask>({.timeout = limit}, b, 1);
    auto second = b.rpc_async<&desk::ask_and_stay>({.timeout = 100s}, a, 1);
    await([&] { return first.ready() || door.arrived() == 2; });
    door.open();
    await(
        [&] { return first.ready() || (waits(group[1], "desk::take'") == 1 && waits(group[2], "desk::take'") == 1); });
    met = !first.ready();
    CHECK(outcome(first) == "rpc_timeout");
    if (met) {
      await([&] { return logged.has("given up by its caller", "desk::take", "its turn at object", "desk::ask"); });
    }
    other_door.open();
    CHECK(outcome(second).empty());
  }
  // Both objects are free again.
  CHECK(a.rpc_sync<&desk::take>(0) >= 0);
  CHECK(b.rpc_sync<&desk::take>(0) >= 0);
}

TEST_CASE("a call that waits for its turn is logged, and its timeout error says where to look") {
  const captured_log logged(ferry::log_level::info);  // as a warning, unless it was read late
  cluster group(2);
  const shut_door shut;
  const auto d = group[0].remote<ferry::make<desk>>("worker1");
  auto first = d.rpc_async<&desk::take_at_door>(1);
  door.await_arrivals(1);
  // Retry with a longer timeout if a busy machine lets it expire before the call waits.
  bool waited = false;
  for (auto limit = 300ms; !waited; limit *= 2) {
    REQUIRE(limit < 100s);
    auto second = d.rpc_async<&desk::take>({.timeout = limit}, 1);
    await([&] { return second.ready() || waits(group[1], "desk::take'") == 1; });
    waited = !second.ready();
    expect_error(errc::rpc_timeout, waited ? "may wait there for its turn" : "", [&] { (void)second.get(); });
  }
  await([&] { return logged.has("worker1", "desk::take'", "its turn at object", "desk::take_at_door"); });
  door.open();
  CHECK(first.get() == 1);
}

}  // namespace reference_deadlocks_test

// Calls on one object: concurrent, ordered per caller, or exclusive (object_traits).

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "tests/rpc/references/table/references.hpp"

namespace reference_turns_test {

using ferry::errc;
using ferry::rref;
using ferry_test::cluster;
using ferry_test::cluster_options;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
ferry_test::gate other_door;

// Counts the concurrent calls; only the counters are synchronised, to check the policy's guarantees.
class room {
 public:
  explicit room(int name) : name_(name) {}
  int note(int value) {
    const in inside(*this);
    values_.push_back(value);
    return value;
  }
  int note_behind_door(int value) {
    const in inside(*this);
    values_.push_back(value);
    door.pass();
    return value;
  }
  int note_behind_other_door(int value) {
    const in inside(*this);
    values_.push_back(value);
    other_door.pass();
    return value;
  }
  [[nodiscard]] std::vector<int> values() const { return values_; }
  [[nodiscard]] int most() const { return most_; }
  [[nodiscard]] int name() const { return name_; }

  // Calls the given object, and waits for it.
  template <class Room>
  int call(const rref<Room>& other, int value) {
    const in inside(*this);
    values_.push_back(value);
    return other.template rpc_sync<&Room::note>(value + 1) + 1;
  }
  // Awaits a call that stops at the door.
  static void stop_nowhere() {}
  static int stop_at_door(int value) {
    door.pass();
    return value;
  }

 protected:
  struct in {
    explicit in(room& r) : of(r) {
      const int now = ++of.inside_;
      int most = of.most_;
      while (most < now && !of.most_.compare_exchange_weak(most, now)) {
      }
    }
    ~in() { --of.inside_; }
    in(const in&) = delete;
    in& operator=(const in&) = delete;
    room& of;
  };
  int name_;
  std::atomic<int> inside_{0};
  std::atomic<int> most_{0};
  std::vector<int> values_;
};

struct free_room : room {
  using room::room;
  std::atomic<int> met{0};
  // Ends when two are in it.
  int meet() {
    ++met;
    while (met < 2) std::this_thread::yield();
    return met;
  }
};
struct ordered_room : room {
  using room::room;
  int descend(const rref<ordered_room>& self, int depth) {
    return depth == 0 ? 0 : 1 + self.rpc_sync<&ordered_room::descend>(self, depth - 1);
  }
};
struct unreadable {
  template <class Archive>
  void save(Archive& archive) const {
    archive(0);
  }
  template <class Archive>
  void load(Archive&) {
    throw std::domain_error("cannot be read");
  }
};
struct single_room : room {
  using room::room;
  int call_single(const rref<single_room>& other, int value) { return call(other, value); }
  int call_through(const std::string& where, const rref<single_room>& self);
  int call_async_and_wait(const rref<single_room>& other) { return other.rpc_async<&single_room::note>(1).get(); }
  void tell(const rref<single_room>& self, int value) {
    values_.push_back(value);
    self.notify<&single_room::note>(value + 1);
  }
  rref<int> leave_there(const rref<single_room>& self, int value) {
    values_.push_back(value);
    return self.remote<&single_room::note>(value + 1);
  }
  ferry::task<int> await_door(int value);
  int call_back(const rref<single_room>& other, const rref<single_room>& self) {
    return other.rpc_sync<&single_room::call_single>(self, 1);
  }
  int fetch_name(const rref<single_room>& self) { return self.rpc_sync<&room::name>(); }
  void break_down() { throw std::domain_error("broken"); }
  ferry::task<void> break_down_later() {
    co_await ferry::rpc_async<&room::stop_nowhere>(ferry::get_worker_info().id());
    throw std::domain_error("broken later");
  }
  void take(const unreadable&) {}
};
struct open_room : room {
  using room::room;
  int call_open(const rref<open_room>& other, int value) { return call(other, value); }
  ferry::task<int> await_door(int value);
  ferry::task<int> await_itself(rref<open_room> self, int value);
  ferry::task<int> steps(int number);
  int blocking_steps(int number);
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] int most_in_steps() const { return most_; }

 private:
  void step() {
    const in inside(*this);
    ++count_;
  }
  int count_ = 0;
};
single_room make_room_slowly() {
  door.pass();
  return single_room(0);
}

int note_in_order(const rref<ordered_room>& ref, int value) {
  return ref.rpc_sync<&room::note_behind_other_door>(value);
}
int note_through(const rref<single_room>& ref, int value) { return ref.rpc_sync<&single_room::note>(value); }

}  // namespace reference_turns_test

template <>
struct ferry::object_traits<reference_turns_test::ordered_room> {
  static constexpr auto execution = ferry::execution::ordered;
};
template <>
struct ferry::object_traits<reference_turns_test::single_room> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<reference_turns_test::open_room> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace reference_turns_test {

int single_room::call_through(const std::string& where, const rref<single_room>& self) {
  values_.push_back(0);
  return ferry::rpc_sync<note_through>(where, self, 1);
}
ferry::task<int> single_room::await_door(int value) {
  values_.push_back(value);
  const int got = co_await ferry::rpc_async<&room::stop_at_door>(ferry::get_worker_info().id(), value);
  values_.push_back(value + 1);
  co_return got;
}
ferry::task<int> open_room::await_door(int value) {
  values_.push_back(value);
  const int got = co_await ferry::rpc_async<&room::stop_at_door>(ferry::get_worker_info().id(), value);
  values_.push_back(value + 1);
  co_return got;
}
ferry::task<int> open_room::await_itself(rref<open_room> self, int value) {
  values_.push_back(value);
  const int got = co_await self.rpc_async<&room::note>(value + 1);
  values_.push_back(value + 2);
  co_return got;
}
ferry::task<int> open_room::steps(int number) {
  const ferry::worker_id here = ferry::get_worker_info().id();
  for (int i = 0; i != number; ++i) {
    step();
    co_await ferry::rpc_async<&room::stop_nowhere>(here);
  }
  co_return number;
}
int open_room::blocking_steps(int number) {
  const ferry::worker_id here = ferry::get_worker_info().id();
  for (int i = 0; i != number; ++i) {
    step();
    ferry::rpc_sync<&room::stop_nowhere>(here);
  }
  return number;
}

// Shuts the doors at the beginning and opens them at the end, so that nothing hangs when a check fails.
struct doors {
  doors() {
    door.reset();
    other_door.reset();
  }
  ~doors() {
    door.open();
    other_door.open();
  }
  doors(const doors&) = delete;
  doors& operator=(const doors&) = delete;
};

TEST_CASE("calls on an object without traits run concurrently") {
  cluster group(2);
  const auto r = group[0].remote<ferry::make<free_room>>("worker1", 0);
  auto a = r.rpc_async<&free_room::meet>();
  auto b = r.rpc_async<&free_room::meet>();
  CHECK(a.get() == 2);
  CHECK(b.get() == 2);
}

TEST_CASE("exclusive: one call at a time, in order of arrival, on any thread") {
  cluster group(3);
  const auto r = group[0].remote<ferry::make<single_room>>("worker1", 0);
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 300; ++i) calls.push_back(r.rpc_async<&room::note>(i));
  for (auto& each : calls) (void)each.get();
  std::vector<int> expected;
  for (int i = 0; i != 300; ++i) expected.push_back(i);
  CHECK(r.rpc_sync<&room::values>() == expected);
  CHECK(r.rpc_sync<&room::most>() == 1);
}

TEST_CASE("exclusive: waiting calls hold no threads, even with a single thread") {
  for (const int threads : {1, 4}) {
    CAPTURE(threads);
    const doors guard;
    cluster group(2, {.configure = [&](ferry::worker_config& config) { config.num_worker_threads = threads; }});
    const auto r = group[0].remote<ferry::make<single_room>>("worker1", 0);
    const auto other = group[0].remote<ferry::make<single_room>>("worker1", 1);
    auto first = r.rpc_async<&room::note_behind_door>(1);
    door.await_arrivals(1);
    std::vector<ferry::future<int>> calls;
    for (int i = 0; i != 50; ++i) calls.push_back(r.rpc_async<&room::note>(i));
    // With a free thread, another object answers although fifty calls wait for this one.
    if (threads > 1) CHECK(other.rpc_sync<&room::note>(7) == 7);
    for (const auto& each : calls) CHECK_FALSE(each.ready());
    door.open();
    for (auto& each : calls) (void)each.get();
    CHECK(first.get() == 1);
    CHECK(other.rpc_sync<&room::name>() == 1);
    CHECK(r.rpc_sync<&room::most>() == 1);
    CHECK(r.rpc_sync<&room::values>().size() == 51);
  }
}

TEST_CASE("exclusive objects of a worker with one thread, and calls between them") {
  cluster group(2, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const auto a = group[0].remote<ferry::make<single_room>>("worker1", 0);
  const auto b = group[0].remote<ferry::make<single_room>>("worker1", 1);
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 20; ++i) calls.push_back(a.rpc_async<&single_room::call_single>(b, i));
  for (int i = 0; i != 20; ++i) CHECK(calls[static_cast<std::size_t>(i)].get() == i + 2);
  CHECK(a.rpc_sync<&room::most>() == 1);
  CHECK(b.rpc_sync<&room::values>().size() == 20);
}

TEST_CASE("ordered: the calls of one caller run one at a time, different callers concurrently") {
  const doors guard;
  cluster group(3);
  const auto r = group[0].remote<ferry::make<ordered_room>>("worker2", 0);
  auto first = r.rpc_async<&room::note_behind_door>(0);
  door.await_arrivals(1);
  const auto behind = r.rpc_async<&room::note>(1);
  auto of_another = group[0].rpc_async<note_in_order>("worker1", r, 1000);
  other_door.await_arrivals(1);  // both are inside
  CHECK(r.owner_name() == "worker2");
  CHECK_FALSE(behind.ready());
  door.open();
  CHECK(first.get() == 0);
  CHECK(behind.get() == 1);
  other_door.open();
  CHECK(of_another.get() == 1000);
  CHECK(r.rpc_sync<&room::most>() == 2);

  std::vector<ferry::future<int>> calls;
  for (int i = 2; i != 200; ++i) calls.push_back(r.rpc_async<&room::note>(i));
  for (auto& each : calls) (void)each.get();
  std::vector<int> values = r.rpc_sync<&room::values>();
  std::erase(values, 1000);
  for (int i = 0; i != 200; ++i) CHECK(values.at(static_cast<std::size_t>(i)) == i);
}

TEST_CASE("a call of a handler to its own exclusive object is refused, direct and through others") {
  cluster group(3);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto a = group[0].remote<ferry::make<single_room>>(where, 0);
    const auto b = group[0].remote<ferry::make<single_room>>("worker2", 1);
    const auto refused = [](auto&& use) { expect_error(errc::would_deadlock, "wait for its turn", use); };
    refused([&] { (void)a.rpc_sync<&single_room::call_single>(a, 1); });
    refused([&] { (void)a.rpc_async<&single_room::call_async_and_wait>(a).get(); });
    refused([&] { (void)a.remote<&single_room::call_single>(a, 1).to_here(); });
    for (const char* through : {"worker0", "worker1", "worker2"}) {
      refused([&] { (void)a.rpc_sync<&single_room::call_through>(through, a); });
    }
    refused([&] { (void)a.rpc_sync<&single_room::call_back>(b, a); });
    refused([&] { (void)a.rpc_sync<&single_room::fetch_name>(a); });
    // Calls without waits are allowed, and so are calls to another object.
    a.rpc_sync<&single_room::tell>(a, 100);
    CHECK(a.rpc_sync<&single_room::leave_there>(a, 200).to_here() == 201);
    CHECK(a.rpc_sync<&single_room::call_single>(b, 1) == 3);
    await([&] {
      const auto values = a.rpc_sync<&room::values>();
      return std::find(values.begin(), values.end(), 101) != values.end();
    });
    CHECK(a.rpc_sync<&room::most>() == 1);
  }
}

TEST_CASE(
    "an ordered object may call itself once: the inner call's caller is its own worker; the next one is refused") {
  cluster group(2);
  const auto r = group[0].remote<ferry::make<ordered_room>>("worker1", 0);
  CHECK(r.rpc_sync<&ordered_room::descend>(r, 0) == 0);
  CHECK(r.rpc_sync<&ordered_room::descend>(r, 1) == 1);
  expect_error(errc::would_deadlock, "wait for its turn", [&] { (void)r.rpc_sync<&ordered_room::descend>(r, 2); });
  CHECK(r.rpc_sync<&ordered_room::descend>(r, 1) == 1);
}

TEST_CASE("exclusive: no other call runs while a coroutine awaits") {
  const doors guard;
  cluster group(2);
  const auto r = group[0].remote<ferry::make<single_room>>("worker1", 0);
  auto first = r.rpc_async<&single_room::await_door>(1);
  door.await_arrivals(1);
  const auto second = r.rpc_async<&room::note>(5);
  await([&] { return group[1].served_calls().size() >= 3; });  // it has arrived
  CHECK_FALSE(second.ready());
  door.open();
  CHECK(first.get() == 1);
  CHECK(second.get() == 5);
  CHECK(r.rpc_sync<&room::values>() == std::vector<int>{1, 2, 5});
}

TEST_CASE("reentrant: other calls run while a coroutine awaits or a handler waits, including calls from itself") {
  const doors guard;
  cluster group(2);
  const auto r = group[0].remote<ferry::make<open_room>>("worker1", 0);
  auto first = r.rpc_async<&open_room::await_door>(1);
  door.await_arrivals(1);
  CHECK(r.rpc_sync<&room::note>(5) == 5);
  door.open();
  CHECK(first.get() == 1);
  CHECK(r.rpc_sync<&room::values>() == std::vector<int>{1, 5, 2});
  CHECK(r.rpc_sync<&open_room::call_open>(r, 10) == 12);
  CHECK(r.rpc_sync<&open_room::await_itself>(r, 20) == 21);
  CHECK(r.rpc_sync<&room::values>() == std::vector<int>{1, 5, 2, 10, 11, 20, 21, 22});
}

TEST_CASE("reentrant: between two waits a call has exclusive access to the object") {
  for (const int threads : {1, 8}) {
    CAPTURE(threads);
    cluster group(2, {.configure = [&](ferry::worker_config& config) { config.num_worker_threads = threads; }});
    const auto r = group[0].remote<ferry::make<open_room>>("worker1", 0);
    std::vector<ferry::future<int>> calls;
    for (int i = 0; i != 20; ++i) {
      calls.push_back(r.rpc_async<&open_room::steps>(20));
      calls.push_back(r.rpc_async<&open_room::blocking_steps>(20));
      calls.push_back(r.rpc_async<&room::note>(i));
    }
    for (auto& each : calls) (void)each.get();
    CHECK(r.rpc_sync<&open_room::count>() == 800);
    CHECK(r.rpc_sync<&open_room::most_in_steps>() == 1);
  }
}

TEST_CASE(
    "a call that times out or is cancelled while it waits for its turn ends then, and the next one gets the turn") {
  const doors guard;
  cluster group(2);
  const auto r = group[0].remote<ferry::make<single_room>>("worker1", 0);
  auto first = r.rpc_async<&room::note_behind_door>(1);
  door.await_arrivals(1);
  expect_error(errc::rpc_timeout, "", [&] { (void)r.rpc_sync<&room::note>({.timeout = 20ms}, 2); });
  auto cancelled = r.rpc_async<&room::note>(3);
  cancelled.cancel();
  expect_error(errc::call_cancelled, "", [&] { (void)cancelled.get(); });
  auto last = r.rpc_async<&room::note>(4);
  door.open();
  CHECK(first.get() == 1);
  CHECK(last.get() == 4);
  CHECK(r.rpc_sync<&room::most>() == 1);
}

TEST_CASE("calls that arrive before their object is made also run in order of arrival") {
  const doors guard;
  cluster group(2);
  const auto r = group[0].remote<make_room_slowly>("worker1");
  door.await_arrivals(1);
  std::vector<ferry::future<int>> calls;
  for (int i = 0; i != 100; ++i) calls.push_back(r.rpc_async<&room::note>(i));
  for (const auto& each : calls) CHECK_FALSE(each.ready());
  door.open();
  for (auto& each : calls) (void)each.get();
  const auto values = r.rpc_sync<&room::values>();
  REQUIRE(values.size() == 100);
  for (int i = 0; i != 100; ++i) CHECK(values[static_cast<std::size_t>(i)] == i);
  CHECK(r.rpc_sync<&room::most>() == 1);
}

TEST_CASE("handlers that throw, and calls whose arguments cannot be decoded, release their turn") {
  cluster group(2);
  const auto r = group[0].remote<ferry::make<single_room>>("worker1", 0);
  for (int i = 0; i != 5; ++i) {
    CHECK_THROWS_AS(r.rpc_sync<&single_room::break_down>(), std::domain_error);
    CHECK_THROWS_AS(r.rpc_sync<&single_room::break_down_later>(), std::domain_error);
    expect_error(errc::bad_arguments, "", [&] { (void)r.rpc_sync<&single_room::take>(unreadable()); });
    CHECK(r.rpc_sync<&room::note>(i) == i);
  }
}

TEST_CASE("the policy also applies to calls through the owner's reference") {
  const doors guard;
  cluster group(2);
  const auto r = group[0].remote<ferry::make<single_room>>("worker0", 0);
  auto first = r.rpc_async<&room::note_behind_door>(1);
  door.await_arrivals(1);
  const auto second = r.rpc_async<&room::note>(2);
  await([&] { return group[0].served_calls().size() >= 2; });
  CHECK_FALSE(second.ready());
  door.open();
  (void)first.get();
  CHECK(second.get() == 2);
}

}  // namespace reference_turns_test

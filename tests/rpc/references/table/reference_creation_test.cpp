// Objects that are made late, never, or too late, and uses of references to them meanwhile.

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/types/string.hpp>
#include <cereal/types/vector.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace reference_creation_test {

using ferry::any_rref;
using ferry::errc;
using ferry::rref;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

ferry_test::gate door;
int slow(int value) {
  door.pass();
  return value;
}
std::string slow_text(const std::string& text) {
  door.pass();
  return text;
}
/// Its constructor waits at the door.
class slow_counter : public counter {
 public:
  explicit slow_counter(int value) : counter(value) { door.pass(); }
  int add_slowly(int more) {
    door.pass();
    return add(more);
  }
};

ferry::future<int> throws_before_a_future(const std::string& why) { throw std::domain_error(why); }
ferry::task<int> throws_in_a_task(std::string why) {
  throw std::domain_error(why);
  co_return 0;
}
ferry::future<int> fails_later(const std::string& why) {
  return ferry::make_failed_future<int>(std::make_exception_ptr(std::domain_error(why)));
}
ferry::future<std::string> text_later(const std::string& text) { return ferry::make_ready_future(text); }
ferry::task<std::string> text_in_a_task(std::string text) { co_return text; }

int sum_here(const rref<int>& a, const rref<int>& b) { return a.to_here() + b.to_here(); }
int sum_local(const rref<int>& a, const rref<int>& b) { return a.local_value() + b.local_value(); }
std::vector<int> append(const std::vector<int>& object, int value) {
  auto longer = object;
  longer.push_back(value);
  return longer;
}
std::vector<int> nothing() { return {}; }

struct unreadable {
  template <class Archive>
  void save(Archive& archive) const {
    archive(1);
  }
  template <class Archive>
  void load(Archive&) {
    throw std::domain_error("cannot be read");
  }
};
int takes(const unreadable&) { return 1; }
struct unwritable {
  template <class Archive>
  void save(Archive&) const {
    throw std::domain_error("cannot be written");
  }
  template <class Archive>
  void load(Archive&) {}
};
int takes_unwritable(const unwritable&) { return 1; }
unwritable gives_unwritable() { return {}; }
int with_reference(const rref<tracked>&, const unwritable&) { return 1; }
int with_reference_unreadable(const rref<tracked>&, const unreadable&) { return 1; }

struct shut_door {
  shut_door() { door.reset(); }
  ~shut_door() { door.open(); }
  shut_door(const shut_door&) = delete;
  shut_door& operator=(const shut_door&) = delete;
};

ferry_test::gate only_place;
void hold_only_place() { only_place.pass(); }

TEST_CASE("[row 70] remote of a function that throws before it has a future, and of ones that fail later") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto check = [](const rref<int>& broken) {
      broken.created().get();  // the call itself succeeded
      CHECK_THROWS_WITH_AS((void)broken.to_here(), "the reason", std::domain_error);
      CHECK_THROWS_WITH_AS((void)broken.to_here_async().get(), "the reason", std::domain_error);
      CHECK_THROWS_WITH_AS((void)broken.rpc_sync<plus>(1), "the reason", std::domain_error);
    };
    check(group[0].remote<throws_before_a_future>(where, "the reason"));
    check(group[0].remote<throws_in_a_task>(where, "the reason"));
    check(group[0].remote<fails_later>(where, "the reason"));
  }
}

TEST_CASE("[row 122] created() works for functions, tasks, futures and constructors") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    group[0].remote<add>(where, 1, 2).created().get();
    group[0].remote<text_in_a_task>(where, "text").created().get();
    group[0].remote<text_later>(where, "text").created().get();
    group[0].remote<ferry::make<counter>>(where, 1).created().get();
    CHECK(group[0].remote<text_in_a_task>(where, "text").to_here() == "text");
    CHECK(group[0].remote<text_later>(where, "text").to_here() == "text");
    const shut_door shut;
    const auto late = group[0].remote<slow>(where, 1);
    const auto created = late.created();
    door.await_arrivals(1);
    CHECK_FALSE(created.ready());
    if (std::string(where) == "worker1") CHECK_FALSE(late.confirmed_by_owner());
    door.open();
    created.get();
    CHECK(late.confirmed_by_owner());
  }
}

TEST_CASE("calls on an object that is still being made wait for it at its owner, without a round trip first") {
  cluster group(2);
  for (const int rank : {1, 0}) {
    CAPTURE(rank);
    const shut_door shut;
    const std::uint64_t before = calls_to(group[0], rank);
    const auto c = group[0].remote<ferry::make<slow_counter>>(rank, 10);
    auto sum = c.rpc_async<&counter::add>(1);
    auto sum_again = c.rpc_async<&counter::add>(1);
    const rref<int> left_there = c.remote<&counter::add>(1);
    auto fetched = left_there.to_here_async();
    c.notify<&counter::add>(1);
    CHECK(calls_to(group[0], rank) == before + 6);
    // All of them have arrived, and none holds a thread.
    await([&] { return group[rank].served_calls().size() >= 6; });
    CHECK(group[rank].debug_info("agent.blocked_handlers") == "0");
    CHECK_FALSE(sum.ready());
    CHECK_FALSE(fetched.ready());
    door.open();
    CHECK(sum.get() + sum_again.get() > 20);
    CHECK(fetched.get() > 10);
    await([&] { return c.rpc_sync<&counter::value>() == 14; });
  }
  await_no_references(group);
}

TEST_CASE("chains of calls on results that have not been fetched") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const shut_door shut;
    rref<int> value = group[0].remote<slow>(where, 1);
    for (int i = 0; i != 50; ++i) value = value.remote<plus>(1);
    // Arguments that are still being made, too: they are resolved at their owner.
    const rref<int> a = group[0].remote<slow>(where, 10);
    const rref<int> b = a.remote<plus>(10);
    const rref<int> both = group[0].remote<sum_local>(where, a, b);
    const auto fetched = value.to_here_async();
    CHECK_FALSE(fetched.ready());
    door.open();
    CHECK(value.to_here() == 51);
    CHECK(both.to_here() == 30);
    rref<std::vector<int>> list = group[0].remote<nothing>(where);
    for (int i = 0; i != 5; ++i) list = list.remote<append>(i);
    CHECK(list.to_here() == std::vector<int>{0, 1, 2, 3, 4});
  }
  await_no_references(group);
}

TEST_CASE("the error of the first object of a chain propagates to all its results") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    rref<int> value = group[0].remote<refuse>(where, "no such thing");
    for (int i = 0; i != 3; ++i) value = value.remote<plus>(1);
    CHECK_THROWS_AS((void)value.to_here(), std::invalid_argument);
  }
}

TEST_CASE("a reference to an object that is still being made can be sent on") {
  cluster group(3);
  {
    const shut_door shut;
    const rref<int> late = group[0].remote<slow>("worker1", 5);
    door.await_arrivals(1);
    auto fetched = group[0].rpc_async<sum_here>("worker2", late, late);
    CHECK_FALSE(fetched.ready());
    door.open();
    CHECK(fetched.get() == 10);
  }
  await_no_references(group);
}

TEST_CASE("a creation whose arguments cannot be encoded fails at once and leaves no references") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    CHECK_THROWS_AS((void)group[0].remote<takes_unwritable>(where, unwritable()), std::domain_error);
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    CHECK_THROWS_AS((void)group[0].remote<with_reference>(where, t, unwritable()), std::domain_error);
  }
  await_no_references(group);
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("a creation whose arguments cannot be decoded fails, and so does every use of the object") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
    for (const rref<int>& broken : {group[0].remote<takes>(where, unreadable()),
                                    group[0].remote<with_reference_unreadable>(where, t, unreadable())}) {
      const auto fails = [](auto&& use) { expect_error(errc::bad_arguments, "", use); };
      fails([&] { (void)broken.rpc_async<plus>(1).get(); });  // before the error is known here, or afterwards
      fails([&] { broken.created().get(); });
      fails([&] { (void)broken.to_here(); });
      fails([&] { (void)broken.rpc_sync<plus>(1); });
      fails([&] { (void)broken.remote<plus>(1); });
      fails([&] { broken.notify<plus>(1); });
      fails([&] { (void)group[0].rpc_sync<fetch>("worker1", broken); });
    }
    CHECK(t.rpc_sync<&tracked::value>() == 1);
  }
  await_no_references(group);
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("fetching an object that cannot be encoded is an error, but calls on it work") {
  cluster group(2);
  const auto u = group[0].remote<gives_unwritable>("worker1");
  expect_error(errc::bad_result, "cannot be written", [&] { (void)u.to_here(); });
  CHECK(any_rref(u).type().get() == ferry::type_name<unwritable>());
}

TEST_CASE("[row 150] a creation that takes longer than its timeout: it fails, and so does every use") {
  cluster group(2);
  {
    CHECK(group[0].rpc_sync<references_test::add>("worker1", 1, 2) == 3);  // so that there is a connection
    const shut_door shut;
    const rref<int> late = group[0].remote<slow>({"worker1", {.timeout = 100ms}}, 1);
    // The text names the call, both workers and the phase.
    for (const char* text : {"creation", "reference_creation_test::slow'", "name=worker0", "name=worker1", "while "}) {
      expect_error(errc::rpc_timeout, text, [&] { late.created().get(); });
    }
    expect_error(errc::rpc_timeout, "creation", [&] { (void)late.to_here(); });
    expect_error(errc::rpc_timeout, "creation", [&] { (void)late.rpc_sync<plus>(1); });
    expect_error(errc::rpc_timeout, "creation", [&] { (void)late.rpc_async<plus>(1); });
    expect_error(errc::rpc_timeout, "creation", [&] { late.notify<plus>(1); });
    expect_error(errc::rpc_timeout, "creation", [&] { (void)group[0].rpc_sync<fetch>("worker1", late); });
    expect_error(errc::rpc_timeout, "creation", [&] { (void)any_rref(late).type(); });
    CHECK_FALSE(late.confirmed_by_owner());
    CHECK(late.owner_name() == "worker1");
    door.open();
    // The function ends; its object exists as long as the reference does.
    await_figure(group[1], "num_owner_rrefs", "1");
    await_figure(group[1], "num_forks", "1");
    expect_error(errc::rpc_timeout, "creation", [&] { (void)late.to_here(); });
  }
  await_no_references(group);
}

TEST_CASE("[row 152] calls on a reference time out: the function is too slow, or the object still being made") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    for (const bool being_made : {false, true}) {
      CAPTURE(being_made);
      const shut_door shut;
      if (!being_made) door.open();
      const auto c = group[0].remote<ferry::make<slow_counter>>(where, 1);
      if (!being_made) {
        c.created().get();
        door.reset();
      }
      const auto late = [](auto&& use) { expect_error(errc::rpc_timeout, "", use); };
      late([&] { (void)c.rpc_sync<&slow_counter::add_slowly>({.timeout = 200ms}, 1); });
      late([&] { (void)c.rpc_async<&slow_counter::add_slowly>({.timeout = 200ms}, 1).get(); });
      const rref<int> sum = c.remote<&slow_counter::add_slowly>({.timeout = 200ms}, 1);
      late([&] { sum.created().get(); });
      late([&] { (void)sum.to_here(); });
      door.open();
      CHECK(c.rpc_sync<&counter::value>() >= 1);
    }
  }
  await_no_references(group);
}

TEST_CASE(
    "[row 153] a creation slower than its timeout, at a peer and at oneself; a fetch waits no longer than its "
    "own timeout") {
  cluster group(2);
  {
    CHECK(group[0].rpc_sync<references_test::add>("worker1", 1, 2) == 3);  // so that there is a connection
    const shut_door shut;
    std::vector<rref<int>> all;
    for (const char* where : {"worker1", "worker0"}) {
      CAPTURE(where);
      all.push_back(group[0].remote<slow>({where, {.timeout = 200ms}}, 1));
      const rref<int>& late = all.back();
      // Its own timeout is long enough, but not the creation's.
      const auto waiting = if_in_time([&] { return late.to_here_async({.timeout = 20s}); }, "creation");
      (void)waiting;
      expect_error(errc::rpc_timeout, "creation", [&] { late.created().get(); });
      expect_error(errc::rpc_timeout, "creation", [&] { (void)late.to_here(); });
      expect_error(errc::rpc_timeout, "creation", [&] { (void)late.to_here_async(); });
      if (late.is_owner()) expect_error(errc::rpc_timeout, "creation", [&] { (void)late.local_value(); });
    }
    // A fetch of an object whose creation has time runs into its own timeout.
    for (const char* where : {"worker1", "worker0"}) {
      CAPTURE(where);
      const rref<int> slow_one = group[0].remote<slow>({where, {.timeout = 20s}}, 1);
      expect_error(errc::rpc_timeout, "", [&] { (void)slow_one.to_here(20ms); });
      expect_error(errc::rpc_timeout, "", [&] { (void)slow_one.to_here_async({.timeout = 200ms}).get(); });
      CHECK_FALSE(slow_one.created().ready());
    }
    door.open();
    await_figure(group[1], "num_owner_rrefs", "1");
    await_figure(group[1], "num_forks", "1");
  }
  await_no_references(group);
}

TEST_CASE("the owner of an object knows its type without a call, which would wait for a handler's place") {
  cluster group(1, {.configure = [](ferry::worker_config& config) { config.num_worker_threads = 1; }});
  const rref<int> own = group[0].make_rref(42);
  const auto held = group[0].rpc_async<hold_only_place>("worker0");
  only_place.await_arrivals(1);
  CHECK(any_rref(own).type().ready());
  CHECK(any_rref(own).type().get() == ferry::type_name<int>());
  only_place.open();
  held.get();
}

TEST_CASE("fetching with timeouts and stop tokens") {
  cluster group(2);
  const shut_door shut;
  const rref<std::string> late = group[0].remote<slow_text>("worker1", "text");
  expect_error(errc::rpc_timeout, "call of 'to_here<", [&] { (void)late.to_here(10ms); });
  expect_error(errc::rpc_timeout, "", [&] { (void)late.to_here({.timeout = 10ms}); });
  std::stop_source source;
  auto stopped = late.to_here_async({.stop = source.get_token()});
  source.request_stop();
  expect_error(errc::call_cancelled, "", [&] { (void)stopped.get(); });
  auto dropped = late.to_here_async();
  dropped.cancel();
  expect_error(errc::call_cancelled, "", [&] { (void)dropped.get(); });
  door.open();
  CHECK(late.to_here(20s) == "text");
  CHECK(late.to_here(ferry::no_timeout) == "text");
}

TEST_CASE("[row 164] a use that is under way when the creation is lost ends with the creation's error") {
  for (const std::string owner : {"worker1", "worker0"}) {
    for (const bool sync : {true, false}) {
      CAPTURE(owner);
      faulty_cluster group(2);
      group.faults(0).add({.action = ferry::fault_action::drop,
                           .kinds = ferry::message_kinds::request,
                           .method = "*references_test::add*"});
      const auto t = group[0].remote<add>({owner, {.timeout = 100ms}}, 1, 2);
      if (sync) {
        expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { (void)t.to_here(); });
        expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { (void)t.rpc_sync<plus>(1); });
      } else {
        const auto fetched = t.to_here_async();
        const auto called = t.rpc_async<plus>(1);
        const auto chained = t.remote<plus>(1);
        expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { (void)fetched.get(); });
        expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { (void)called.get(); });
        CHECK_THROWS((void)chained.to_here());
      }
      expect_error(errc::rpc_timeout, "the creation by remote failed", [&] { t.created().get(); });
    }
  }
}

TEST_CASE("a use that waits while the creation is cancelled ends with that, or with the value") {
  cluster group(2);
  for (const std::string owner : {"worker1", "worker0"}) {
    for (int round = 0; round != 50; ++round) {
      std::stop_source source;
      const auto token = source.get_token();
      const auto t = group[0].remote<add>({owner, {.stop = token}}, 1, 2);
      const auto fetched = t.to_here_async();
      source.request_stop();
      try {
        const int value = fetched.get();
        CHECK(value == 3);
      } catch (const ferry::error& problem) {
        CHECK_MESSAGE(problem.kind() == errc::call_cancelled, problem.what());
      }
    }
  }
  await_no_references(group);
}

TEST_CASE("a creation that is cancelled fails, and its object is destroyed") {
  cluster group(2);
  {
    const shut_door shut;
    std::stop_source source;
    const auto token = source.get_token();
    const auto t = group[0].remote<slow>({"worker1", {.stop = token}}, 1);
    door.await_arrivals(1);
    source.request_stop();
    expect_error(errc::call_cancelled, "creation", [&] { t.created().get(); });
    expect_error(errc::call_cancelled, "creation", [&] { (void)t.to_here(); });
  }
  await_no_references(group);
}

}  // namespace reference_creation_test

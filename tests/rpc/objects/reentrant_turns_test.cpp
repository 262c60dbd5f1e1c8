// Handlers of objects with turns: reentrant ones, which release the turn while they wait, and work of a handler after
// its answer.

#include <functional>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "gate.hpp"

namespace reentrant_turns_test {

using ferry_test::cluster;
using ferry_test::gate;

gate elsewhere;
gate place;
void wait_elsewhere() { elsewhere.pass(); }
void keep_place() { place.pass(); }

int answer() { return 42; }
ferry::promise<int> afterwards;

struct call_in_destructor {
  int to_make = 0;
  ~call_in_destructor() {
    if (to_make != 0 && ferry::this_call().caller().value >= 0) (void)ferry::rpc_sync<answer>("worker0");
  }
  template <class Archive>
  void serialize(Archive& archive) {
    archive(to_make);
  }
};

class actor {
 public:
  int ask(const std::string& whom) {
    ferry::rpc_sync<wait_elsewhere>(whom);
    return ++calls_;
  }
  int count() { return ++calls_; }
  // Its argument is destroyed after the answer, and makes a call then.
  int take(const call_in_destructor& last) { return last.to_make; }

 private:
  int calls_ = 0;
};

class exclusive_actor {
 public:
  int count() { return ++calls_; }
  // Answers at once; a continuation calls this object and passes on the result.
  int count_once_more(const ferry::rref<exclusive_actor>& self) {
    ferry::rpc_async<answer>("worker0").then([self](const ferry::future<int>&) {
      place.pass();
      afterwards.set_value(self.rpc_sync<&exclusive_actor::count>());
    });
    return ++calls_;
  }

 private:
  int calls_ = 0;
};

}  // namespace reentrant_turns_test

template <>
struct ferry::object_traits<reentrant_turns_test::exclusive_actor> {
  static constexpr auto execution = ferry::execution::exclusive;
};

template <>
struct ferry::object_traits<reentrant_turns_test::actor> {
  static constexpr auto execution = ferry::execution::exclusive;
  static constexpr bool reentrant = true;
};

namespace reentrant_turns_test {

TEST_CASE(
    "a handler that returns from a wait waits for its turn without a handler slot, which the call with the turn may "
    "need") {
  elsewhere.reset();
  place.reset();
  cluster group(2, {.configure = [](ferry::worker_config& config) {
                  if (config.rank == 1) config.num_worker_threads = 1;
                }});
  const auto object = group[0].remote<ferry::make<actor>>("worker1");
  const auto asking = object.rpc_async<&actor::ask>(std::string("worker0"));
  elsewhere.await_arrivals(1);  // the handler waits, and has released its slot and its turn
  const auto keeping = group[0].rpc_async<keep_place>("worker1");
  place.await_arrivals(1);
  const auto counting = object.rpc_async<&actor::count>();  // gets the turn but no slot
  // Once the call behind it has arrived, it has been processed and has the turn.
  const auto behind = group[0].rpc_async<answer>("worker1");
  while (group[1].served_calls().size() != 4) std::this_thread::yield();
  elsewhere.open();
  while (group[0].traffic().empty() || group[1].pending_calls().size() != 0) std::this_thread::yield();
  place.open();
  CHECK(counting.get() == 1);
  CHECK(asking.get() == 2);
  keeping.get();
  CHECK(behind.get() == 42);
}

TEST_CASE("waits of a handler after its answer need no turn") {
  cluster group(2);
  const auto object = group[0].remote<ferry::make<actor>>("worker1");
  for (int i = 1; i != 20; ++i) {
    call_in_destructor last;
    last.to_make = 1;
    CHECK(object.rpc_sync<&actor::take>(last) == 1);
    last.to_make = 0;
    CHECK(object.rpc_sync<&actor::count>({.timeout = std::chrono::seconds(60)}) == i);
  }
}

TEST_CASE("a continuation that runs after the answer can call the object") {
  place.reset();
  afterwards = {};
  cluster group(2);
  const auto object = group[0].remote<ferry::make<exclusive_actor>>("worker1");
  CHECK(object.rpc_sync<&exclusive_actor::count_once_more>(object) == 1);
  place.open();
  CHECK(afterwards.get_future().get() == 2);
}

}  // namespace reentrant_turns_test

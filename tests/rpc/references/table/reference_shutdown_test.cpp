// References and objects during and after shutdown.

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

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace reference_shutdown_test {

using ferry::any_rref;
using ferry::errc;
using ferry::fault_action;
using ferry::message_kinds;
using ferry::rref;
using ferry_test::captured_log;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

// Never released.
rref<tracked>& static_reference() {
  static auto* ref = new rref<tracked>;
  return *ref;
}
void keep_in_static(const rref<tracked>& ref) { static_reference() = ref; }

// Objects that refer to each other.
class node {
 public:
  explicit node(int value) : tracked_(value) {}
  void refer_to(const rref<node>& next) { next_ = next; }
  [[nodiscard]] int value() const { return tracked_.value(); }
  [[nodiscard]] int value_of_next() const { return next_.rpc_sync<&node::value>(); }

 private:
  tracked tracked_;
  rref<node> next_;
};

// Drops reference controls.
void lose_controls(ferry::fault_injector& faults) {
  faults.add({.action = fault_action::fail, .kinds = message_kinds::request, .method = "ferry/references"});
}

TEST_CASE("[row 124] references that other workers still hold are reported at shutdown, as an error if so configured") {
  for (const bool ignored : {true, false}) {
    CAPTURE(ignored);
    const captured_log logged;
    faulty_cluster group(2, [&](ferry::worker_config& config) { config.ignore_rref_leaks = ignored; });
    const auto t = group[1].remote<ferry::make<tracked>>("worker0", 1);
    t.created().get();
    lose_controls(group.faults(1));
    const auto errors = shut_down(group, 4s);
    CHECK(logged.has("worker0", "leaking reference", "worker1"));
    CHECK(errors[1] == nullptr);
    if (ignored) {
      CHECK(errors[0] == nullptr);
    } else {
      REQUIRE(errors[0] != nullptr);
      expect_error(errc::reference_leaked, "held by worker1", [&] { std::rethrow_exception(errors[0]); });
      expect_error(errc::reference_leaked, "worker0", [&] { std::rethrow_exception(errors[0]); });
    }
    await([] { return tracked::alive() == 0; });
  }
}

TEST_CASE("[row 125] references that the program never releases end with the graceful shutdown") {
  {
    cluster group(3, {.configure = [](ferry::worker_config& config) { config.ignore_rref_leaks = false; }});
    SUBCASE("in a static variable") {
      static_reference() = group[0].remote<ferry::make<tracked>>("worker1", 1);
      CHECK(static_reference().rpc_sync<&tracked::value>() == 1);
    }
    SUBCASE("in a static variable, of a handler") {
      const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
      group[0].rpc_sync<keep_in_static>("worker2", t);
    }
    SUBCASE("at the owner") {
      const auto t = group[0].remote<ferry::make<tracked>>("worker1", 1);
      group[0].rpc_sync<keep_in_static>("worker1", t);
    }
    SUBCASE("of an own object that others know") {
      static_reference() = group[0].remote<ferry::make<tracked>>("worker0", 1);
      CHECK(group[0].rpc_sync<touch>("worker1", static_reference()) == 1);
    }
    SUBCASE("of an object that is still being made") {
      static_reference() = group[0].remote<ferry::make<tracked>>("worker1", 1);
    }
    SUBCASE("in a cycle of objects") {
      const auto a = group[0].remote<ferry::make<node>>("worker1", 1);
      const auto b = group[0].remote<ferry::make<node>>("worker2", 2);
      a.rpc_sync<&node::refer_to>(b);
      b.rpc_sync<&node::refer_to>(a);
      CHECK(a.rpc_sync<&node::value_of_next>() == 2);
      CHECK(b.rpc_sync<&node::value_of_next>() == 1);
    }
    group.shutdown(true, 20s);
  }
  static_reference() = {};
  CHECK(tracked::alive() == 0);
}

TEST_CASE("[row 126] after shutdown fetching, calling and sending through a reference are errors") {
  for (const bool graceful : {true, false}) {
    CAPTURE(graceful);
    cluster group(2);
    std::vector<rref<int>> all{group[0].remote<add>("worker1", 1, 2), group[0].remote<add>("worker0", 1, 2)};
    for (const auto& each : all) {
      CHECK(each.to_here() == 3);
      each.created().get();  // else the creation itself may fail, which is another error
    }
    if (graceful) {
      group.shutdown();
    } else {  // one after the other: the first must not learn of the other's end before its own
      group[0].shutdown(false);
      group[1].shutdown(false);
    }
    expect_error(errc::not_initialized, "has been shut down", [&] { (void)group[0].make_rref(1); });
    cluster next(2);
    for (const rref<int>& ref : all) {
      const auto deleted = [](auto&& use) { expect_error(errc::reference_deleted, "", use); };
      deleted([&] { (void)ref.to_here(); });
      deleted([&] { (void)ref.to_here_async(); });
      deleted([&] { (void)ref.rpc_sync<plus>(1); });
      deleted([&] { (void)ref.rpc_async<plus>(1); });
      deleted([&] { (void)ref.remote<plus>(1); });
      deleted([&] { ref.notify<plus>(1); });
      deleted([&] { (void)any_rref(ref).type(); });
      deleted([&] { (void)ref.owner(); });
      deleted([&] { (void)next[0].rpc_sync<fetch>("worker1", ref); });
      deleted([&] { (void)next[0].rpc_sync<fetch>("worker0", ref); });
      deleted([&] { (void)next[0].remote<fetch>("worker1", ref); });
    }
    expect_error(errc::reference_deleted, "", [&] { (void)all[1].local_value(); });
    CHECK(all[1].is_owner());
    CHECK_FALSE(all[0].is_owner());
    CHECK(to_string(all[0]).find("rref<i32>(owner=1") == 0);
    CHECK(all[0] == all[0]);
    CHECK(all[0] != all[1]);
  }
}

TEST_CASE("[row 128] a reference cannot be saved outside calls") {
  cluster group(2);
  const rref<int> ref = group[0].remote<add>("worker1", 1, 2);
  expect_error(errc::not_serialisable, "a reference can be sent only", [&] { (void)ferry::serialize(ref); });
  expect_error(errc::not_serialisable, "a reference can be sent only",
               [&] { (void)ferry::serialize(std::string("text"), std::vector<rref<int>>{ref}); });
  expect_error(errc::not_serialisable, "a reference can be sent only", [&] { (void)ferry::serialize(any_rref(ref)); });
  CHECK(ref.to_here() == 3);
}

TEST_CASE("[row 142] a shutdown that fails at one worker completes everywhere, with an error at each one concerned") {
  SUBCASE("a worker does not join the shutdown, and keeps references") {
    cluster group(3, {.graceful = false});
    const auto t = group[2].remote<ferry::make<tracked>>("worker0", 1);
    CHECK(t.rpc_sync<&tracked::value>() == 1);
    std::vector<std::exception_ptr> errors(2);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank != 2; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          group[rank].shutdown(true, 500ms);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
    threads.clear();
    for (const auto& each : errors) {
      REQUIRE(each != nullptr);
      expect_error(errc::shutdown_timeout, "worker2", [&] { std::rethrow_exception(each); });
    }
    // The owner and its object are gone; uses at the remaining worker fail, and it can shut down.
    await([] { return tracked::alive() == 0; });
    CHECK_THROWS_AS((void)t.rpc_sync<&tracked::value>(), ferry::error);
    group[2].shutdown(false);
    CHECK_THROWS_AS((void)t.rpc_sync<&tracked::value>(), ferry::error);
  }
  SUBCASE("two workers are left with references of a third one") {
    const captured_log logged;
    faulty_cluster group(3, [](ferry::worker_config& config) { config.ignore_rref_leaks = false; });
    const auto a = group[2].remote<ferry::make<tracked>>("worker0", 1);
    const auto b = group[2].remote<ferry::make<tracked>>("worker1", 2);
    a.created().get();
    b.created().get();
    lose_controls(group.faults(2));
    const auto errors = shut_down(group, 4s);
    for (const int owner : {0, 1}) {
      REQUIRE(errors[static_cast<std::size_t>(owner)] != nullptr);
      expect_error(errc::reference_leaked, ferry_test::worker_name(owner),
                   [&] { std::rethrow_exception(errors[static_cast<std::size_t>(owner)]); });
    }
    CHECK(errors[2] == nullptr);
    CHECK_FALSE(ferry::is_initialized());
  }
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("a graceful shutdown that waits for references ends at once when an immediate one is requested") {
  faulty_cluster group(2);
  const auto t = group[1].remote<ferry::make<tracked>>("worker0", 1);
  t.created().get();
  lose_controls(group.faults(1));
  const auto before = group.faults(1).counters().failed;
  std::vector<std::jthread> graceful;
  graceful.emplace_back([&] { expect_error(errc::shutting_down, "", [&] { group[0].shutdown(true, 100s); }); });
  graceful.emplace_back([&] {  // it may find the other one gone first, and succeed
    try {
      group[1].shutdown(true, 100s);
    } catch (const ferry::error&) {  // NOLINT(bugprone-empty-catch): or be interrupted
    }
  });
  // Until the reference has ended; the owner never gets that control.
  await([&] { return group.faults(1).counters().failed != before; });
  const auto began = ferry::clock::now();
  for (int rank = 0; rank != 2; ++rank) group[rank].shutdown(false);
  graceful.clear();
  CHECK(ferry::clock::now() - began < 10s);
}

TEST_CASE("references work after a shutdown and another start, again and again") {
  rref<int> old;
  for (int round = 0; round != 3; ++round) {
    cluster group(2);
    if (old) expect_error(errc::reference_deleted, "", [&] { (void)old.to_here(); });
    const auto broken = group[0].remote<refuse>("worker1", "round " + std::to_string(round));
    CHECK_THROWS_WITH_AS((void)broken.to_here(), ("round " + std::to_string(round)).c_str(), std::invalid_argument);
    old = group[0].remote<add>("worker1", round, 1);
    CHECK(old.to_here() == round + 1);
    CHECK(group[0].rpc_sync<fetch>("worker1", old) == round + 1);
    CHECK(group[1].debug_info("num_owner_rrefs") != "0");
  }
}

TEST_CASE("a graceful shutdown waits for creations, calls and chains in flight") {
  std::vector<rref<int>> kept;
  cluster group(3);
  for (int i = 0; i != 20; ++i) {
    kept.push_back(group[0].remote<add>("worker1", i, 1).remote<plus>(1));
    kept.push_back(group[0].remote<make_there>("worker1", "worker2", i).remote<fetch>());
    group[0].notify<fetch>("worker2", kept.back());
  }
  group.shutdown(true, 20s);
  for (const auto& each : kept) expect_error(errc::reference_deleted, "", [&] { (void)each.to_here(); });
}

TEST_CASE("an immediate shutdown with objects, references and creations in flight leaks no object") {
  {
    cluster group(3, {.graceful = false});
    std::vector<rref<tracked>> kept;
    for (int i = 0; i != 50; ++i) {
      kept.push_back(group[i % 3].remote<ferry::make<tracked>>((i + 1) % 3, i));
      (void)group[i % 3].rpc_async<touch>((i + 2) % 3, kept.back());
    }
  }
  await([] { return tracked::alive() == 0; });
}

TEST_CASE("objects that keep themselves by a reference are destroyed when shutdown() returns") {
  for (const bool graceful : {true, false}) {
    CAPTURE(graceful);
    cluster group(1, {.graceful = graceful});
    rref<node> itself = group[0].make_rref<node>(std::in_place, 1);
    itself.rpc_sync<&node::refer_to>(itself);
    itself = {};
    rref<node> first = group[0].make_rref<node>(std::in_place, 2);
    const rref<node> second = group[0].make_rref<node>(std::in_place, 3);
    first.rpc_sync<&node::refer_to>(second);
    second.rpc_sync<&node::refer_to>(first);
    CHECK(tracked::alive() == 3);
    group[0].shutdown(graceful);
    // At once, a thread whose call has been answered may still be letting go of the object.
    if (!graceful) await([] { return tracked::alive() == 0; });
    CHECK(tracked::alive() == 0);
    // A handle that outlives the object.
    expect_error(errc::reference_deleted, "", [&] { (void)second.local_value(); });
  }
}

TEST_CASE("objects of two workers that keep each other by references are destroyed at shutdown") {
  for (const bool graceful : {true, false}) {
    CAPTURE(graceful);
    {
      cluster group(2, {.graceful = graceful});
      const rref<node> here = group[0].make_rref<node>(std::in_place, 1);
      const rref<node> there = group[0].remote<ferry::make<node>>("worker1", 2);
      here.rpc_sync<&node::refer_to>(there);
      there.rpc_sync<&node::refer_to>(here);
      CHECK(tracked::alive() == 2);
    }
    CHECK(tracked::alive() == 0);
  }
}

}  // namespace reference_shutdown_test

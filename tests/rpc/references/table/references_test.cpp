// Remote references between workers of one process: making, using, sending and dropping them.

#include <memory>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <unordered_map>
#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace references_test {

using ferry::errc;
using ferry::rref;
using ferry_test::cluster;
using namespace std::chrono_literals;

TEST_CASE("[row 100] remote leaves the result of a function where it was made") {
  cluster group(2);
  const rref<int> sum = group[0].remote<add>("worker1", 3, 4);
  CHECK_FALSE(sum.is_owner());
  CHECK(sum.owner_name() == "worker1");
  CHECK(sum.to_here() == 7);
  CHECK(sum.to_here() == 7);
  sum.created().get();
  CHECK(sum.confirmed_by_owner());
}

TEST_CASE("[row 92] remote to oneself") {
  cluster group(2);
  const rref<int> sum = group[0].remote<add>("worker0", 3, 4);
  CHECK(sum.is_owner());
  CHECK(sum.confirmed_by_owner());
  CHECK(sum.local_value() == 7);
  CHECK(sum.to_here() == 7);
}

TEST_CASE("[row 97] member functions change the object at its owner") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto c = group[0].remote<ferry::make<counter>>(where, 10);
    CHECK(c.rpc_sync<&counter::add>(5) == 15);
    CHECK(c.rpc_async<&counter::add>(1).get() == 16);
    c.notify<&counter::add>(1);
    const rref<int> kept = c.remote<&counter::add>(1);
    while (c.rpc_sync<&counter::value>() != 18) std::this_thread::yield();
    CHECK(c.rpc_sync<twice>() == 36);
    CHECK(kept.to_here() >= 17);
    CHECK(c.rpc_sync<&counter::later>(2).empty());
  }
}

TEST_CASE("an object that can be neither moved nor sent") {
  cluster group(2);
  const auto p = group[0].remote<ferry::make<pinned>>("worker1", std::string("here"));
  CHECK(p.rpc_sync<&pinned::text>() == "here");
}

TEST_CASE("[row 106] an exception of the function becomes its object's error, with its type") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto broken = group[0].remote<refuse>(where, "no such thing");
    broken.created().get();
    CHECK_THROWS_AS(broken.to_here(), std::invalid_argument);
    CHECK_THROWS_AS((broken.rpc_sync<plus>(1)), std::invalid_argument);
    CHECK_THROWS_AS((broken.rpc_async<plus>(1).get()), std::invalid_argument);
  }
}

TEST_CASE("[row 102] a reference is passed to a third worker, which fetches") {
  cluster group(3);
  const rref<int> sum = group[0].remote<add>("worker1", 3, 4);
  CHECK(group[0].rpc_sync<fetch>("worker2", sum) == 7);
  CHECK(group[0].rpc_sync<fetch>("worker1", sum) == 7);
  CHECK(group[0].rpc_sync<fetch>("worker0", sum) == 7);
  CHECK(group[0].rpc_async<fetch>("worker2", sum).get() == 7);
  CHECK(group[0].remote<fetch>("worker2", sum).to_here() == 7);
}

TEST_CASE("[row 108] a call returns a reference that a third worker owns") {
  cluster group(3);
  const rref<int> sum = group[0].rpc_sync<make_there>("worker1", "worker2", 5);
  CHECK(sum.owner_name() == "worker2");
  CHECK(sum.to_here() == 5);
}

TEST_CASE("objects without references are destroyed, and the figures show it") {
  cluster group(3);
  {
    const auto c = group[0].remote<ferry::make<tracked>>("worker1", 1);
    CHECK(group[0].rpc_sync<touch>("worker2", c) == 1);
    await_figure(group[1], "num_owner_rrefs", "1");
    CHECK(tracked::alive() == 1);
  }
  await_figure(group[1], "num_owner_rrefs", "0");
  await_figure(group[1], "num_forks", "0");
  await([] { return tracked::alive() == 0; });  // the figures are ahead of the destructor
}

// Writes references that have no other holder.
struct many_made {
  std::vector<rref<int>> all;

  template <class Archive>
  void save(Archive& archive) const {
    for (int i = 0; i != 12; ++i) {
      const auto made = ferry::remote<add>("worker1", i, 0);
      made.created().get();
      archive(made);
    }
  }
  template <class Archive>
  void load(Archive& archive) {
    all.resize(12);
    for (auto& each : all) archive(each);
  }
};

ferry::promise<std::string> called_by;
std::string last_caller() { return ferry::get_worker_info(ferry::this_call().caller()).name(); }
class calling_in_destructor {
 public:
  calling_in_destructor() = default;
  calling_in_destructor(const calling_in_destructor&) = delete;
  calling_in_destructor& operator=(const calling_in_destructor&) = delete;
  ~calling_in_destructor() { called_by.set_value(ferry::rpc_sync<last_caller>("worker0")); }
};

std::vector<int> values_of(const many_made& made) {
  std::vector<int> values;
  for (const auto& each : made.all) values.push_back(each.to_here());
  return values;
}

TEST_CASE("references that a serialiser makes and drops while it writes arrive unchanged") {
  cluster group(2);  // free functions use worker1 or worker0, whichever started last: each knows the other
  const std::vector<int> values = ferry::rpc_sync<values_of>("worker0", many_made());
  REQUIRE(values.size() == 12);
  for (int i = 0; i != 12; ++i) CHECK(values[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("local_value beside the owner names where it was called, and the owner") {
  cluster group(2);
  {
    const rref<int> there = group[0].remote<add>("worker1", 1, 2);
    for (const std::string_view part :
         {"was called on worker_info(id=0, name=worker0), which does not own", "worker_info(id=1, name=worker1) does"})
      expect_error(errc::not_owner, part, [&] { (void)there.local_value(); });
  }
  await_no_references(group);
}

TEST_CASE("make_rref makes an object of the worker that it is called on, not of the current one") {
  cluster group(3);
  {
    for (int rank = 0; rank != 3; ++rank) {
      CAPTURE(rank);
      const rref<int> number = group[rank].make_rref(rank);
      const auto text = group[rank].make_rref<pinned>(std::in_place, "stays");
      const int here = rank;
      CHECK(group[rank].make_rref(here).local_value() == rank);
      CHECK(number.owner().id().value == rank);
      CHECK(text.local_value().text() == "stays");
      CHECK(group[rank].rpc_sync<fetch>((rank + 1) % 3, number) == rank);
    }
  }
  await_no_references(group);
}

TEST_CASE("notify through a reference takes the options of a call") {
  cluster group(2);
  const auto c = group[0].remote<ferry::make<counter>>("worker1", 0);
  std::stop_source stop;
  c.notify<&counter::add>({.timeout = std::chrono::seconds(30), .stop = stop.get_token()}, 1);
  await([&] { return c.rpc_sync<&counter::value>() == 1; });
  stop.request_stop();
  expect_error(ferry::errc::call_cancelled, "before it was sent",
               [&] { c.notify<&counter::add>({.stop = stop.get_token()}, 1); });
  CHECK(c.rpc_sync<&counter::value>() == 1);
}

TEST_CASE("calls of an object's destructor are made by its owner") {
  cluster group(3);
  for (int round = 0; round != 50; ++round) {
    for (const char* owner : {"worker1", "worker2", "worker0"}) {
      called_by = {};
      { const auto object = group[0].remote<ferry::make<calling_in_destructor>>(owner); }
      REQUIRE(called_by.get_future().get() == std::string(owner));
    }
  }
}

TEST_CASE("a worker that leaves alone ends its references, and its objects are lost to the others") {
  for (const bool dynamic : {true, false}) {
    CAPTURE(dynamic);
    const int before = tracked::alive();
    cluster group(3, {.configure = [&](ferry::worker_config& config) {
                    if (dynamic) config.world_size = ferry::dynamic_world;
                  }});
    const auto there = group[0].remote<ferry::make<tracked>>("worker1", 1);
    const auto here = group[1].remote<ferry::make<tracked>>("worker0", 2);
    CHECK(there.rpc_sync<&tracked::value>() == 1);
    CHECK(here.rpc_sync<&tracked::value>() == 2);
    CHECK(tracked::alive() == before + 2);
    group[1].leave();
    await_figure(group[0], "num_owner_rrefs", "0");
    expect_error(errc::peer_lost, "worker1", [&] { (void)there.rpc_sync<&tracked::value>(); });
    expect_error(errc::reference_deleted, "shut", [&] { (void)here.rpc_sync<&tracked::value>(); });
    while (tracked::alive() != before) std::this_thread::yield();
    while (there.confirmed_by_owner()) std::this_thread::yield();  // the calls fail first
  }
}

}  // namespace references_test

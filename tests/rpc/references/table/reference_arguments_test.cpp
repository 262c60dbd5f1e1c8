// References as arguments and results of calls, and inside them.

#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <cereal/types/map.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "references.hpp"

namespace reference_arguments_test {

using ferry::any_rref;
using ferry::errc;
using ferry::rref;
using ferry_test::cluster;
using namespace references_test;
using namespace std::chrono_literals;

int add_to(const rref<int>& ref, int more) { return ref.to_here() + more; }
int add_to_counter(const rref<counter>& ref, int more) { return ref.rpc_sync<&counter::add>(more); }
int at_hand(const rref<counter>& ref, int more) { return ref.local_value().add(more); }
int sum_of_local(const rref<int>& a, const rref<int>& b) { return a.local_value() + b.local_value(); }

ferry::tensor scaled(const ferry::tensor& t) { return t; }

int nested_remote(const std::string& where, int a) { return ferry::remote<add>(where, a, 1).to_here(); }
std::tuple<rref<int>, rref<int>> two_elsewhere(const std::string& where, int value) {
  return {ferry::remote<add>(where, value, 1), ferry::remote<add>(where, value, 2)};
}

struct hop {
  int value = 0;
  any_rref next;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(value, next);
  }
};
hop forward(int hops, const rref<int>& ref) {
  if (hops == 0) return {.value = ref.to_here(), .next = {}};
  const int size = static_cast<int>(ferry::get_worker_infos().size());
  return {.value = 0, .next = ferry::remote<forward>((ferry::get_worker_info().id().value + 1) % size, hops - 1, ref)};
}

std::vector<rref<counter>> make_counters(int count) {
  std::vector<rref<counter>> made;
  for (int i = 0; i != count; ++i) made.emplace_back(std::in_place, i);
  return made;
}

struct holdings {
  std::string name;
  std::vector<rref<int>> list;
  std::map<std::string, rref<int>> by_name;
  std::optional<rref<int>> one;
  std::optional<rref<int>> none;
  rref<int> empty;
  std::pair<int, any_rref> any;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(name, list, by_name, one, none, empty, any);
  }
};
int total(const holdings& all) {
  if (all.none || all.empty) throw std::logic_error("there should be nothing");
  int sum = all.any.first + all.any.second.as<int>().to_here() + all.one.value().to_here();
  for (const auto& each : all.list) sum += each.to_here();
  for (const auto& [name, each] : all.by_name) sum += each.to_here();
  return sum;
}
holdings echo(const holdings& all) { return all; }

bool same(const rref<int>& a, const rref<int>& b) {
  return a == b && std::hash<rref<int>>()(a) == std::hash<rref<int>>()(b);
}
bool is_empty(const rref<int>& ref) { return !ref; }
rref<int> empty_result() { return {}; }
rref<int> back(const rref<int>& ref) { return ref; }
// A reference that a handler stores.
rref<int>& kept() {
  static rref<int> ref;
  return ref;
}
void keep(const rref<int>& ref) { kept() = ref; }
int use_kept() { return std::exchange(kept(), rref<int>()).to_here(); }

ferry::future<int> fetch_later(const rref<int>& ref) {
  if (!ref.confirmed_by_owner()) throw std::logic_error("the reference is not confirmed");
  return ref.to_here_async();
}
ferry::task<int> fetch_in_a_task(rref<int> ref) {
  if (!ref.confirmed_by_owner()) throw std::logic_error("the reference is not confirmed");
  const int value = co_await ref.to_here_async();
  co_return value + co_await ref.rpc_async<plus>(1);
}

TEST_CASE("[row 22] remote to an id outside the group fails at once and leaves no references") {
  cluster group(2);
  CHECK(group[0].remote<add>(1, 1, 2).to_here() == 3);
  CHECK(group[0].remote<add>(group[0].get_worker_info("worker1"), 1, 2).to_here() == 3);
  for (const int id : {-1, 2, 100000}) {
    CAPTURE(id);
    expect_error(errc::unknown_worker, "", [&] { (void)group[0].remote<add>(id, 1, 2); });
  }
  expect_error(errc::unknown_worker, "missing", [&] { (void)group[0].remote<add>("missing", 1, 2); });
  await_no_references(group);
}

TEST_CASE("[row 93] a reference made at oneself is an argument of calls to a peer and to oneself") {
  cluster group(2);
  const rref<int> own = group[0].remote<add>("worker0", 1, 2);
  CHECK(own.is_owner());
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    CHECK(group[0].rpc_async<add_to>(where, own, 1).get() == 4);
    CHECK(group[0].rpc_sync<add_to>(where, own, 2) == 5);
    CHECK(group[0].remote<add_to>(where, own, 3).to_here() == 6);
  }
}

TEST_CASE("[row 96] one reference is used for many calls") {
  cluster group(2);
  const auto c = group[0].remote<ferry::make<counter>>("worker1", 0);
  std::vector<ferry::future<int>> sums;
  for (int i = 0; i != 200; ++i) {
    sums.push_back(c.rpc_async<&counter::add>(1));
    if (i % 10 == 0) (void)c.rpc_sync<&counter::value>();
  }
  for (auto& each : sums) (void)each.get();
  CHECK(c.rpc_sync<&counter::value>() == 200);
  // A call with a reference takes as many messages as one without: the request.
  const std::uint64_t before = calls_to(group[0], 1);
  for (int i = 0; i != 10; ++i) (void)c.rpc_sync<&counter::add>(1);
  CHECK(calls_to(group[0], 1) == before + 10);
}

TEST_CASE("[row 98] remote of a function of tensors, to a peer and to oneself") {
  cluster group(2);
  const ferry::tensor ones = ferry::ones({3, 4});
  const rref<ferry::tensor> there = group[0].remote<scaled>("worker1", ones);
  const ferry::tensor fetched = there.to_here();
  CHECK(fetched.numel() == 12);
  CHECK(fetched.data<float>()[11] == 1.0F);
  const rref<ferry::tensor> here = group[0].remote<scaled>("worker0", ones);
  CHECK(here.local_value().numel() == 12);
  CHECK(here.to_here().data<float>() == here.local_value().data<float>());
}

TEST_CASE("[row 101] references passed to their owner refer to the object there") {
  cluster group(2);
  const rref<int> a = group[0].remote<add>("worker1", 1, 2);
  const rref<int> b = group[0].remote<add>("worker1", 3, 4);
  CHECK(group[0].remote<sum_of_local>("worker1", a, b).to_here() == 10);
  CHECK(group[0].rpc_sync<sum_of_local>("worker1", a, b) == 10);
  CHECK(group[0].rpc_async<sum_of_local>("worker1", a, a).get() == 6);
}

TEST_CASE("[row 104] a handler makes an object at a third worker and fetches it") {
  cluster group(3);
  CHECK(group[0].remote<nested_remote>("worker1", "worker2", 5).to_here() == 6);
  CHECK(group[0].remote<nested_remote>("worker0", "worker0", 5).to_here() == 6);
  await_no_references(group);
}

TEST_CASE("[row 105] an object that consists of references to objects of a third worker") {
  cluster group(3);
  SUBCASE("once") {
    const auto both = group[0].remote<two_elsewhere>("worker1", "worker2", 10);
    const auto [a, b] = both.to_here();
    CHECK(a.owner_name() == "worker2");
    CHECK(a.to_here() == 11);
    CHECK(b.to_here() == 12);
  }
  SUBCASE("twenty at once") {
    std::vector<rref<std::tuple<rref<int>, rref<int>>>> all;
    for (int i = 0; i != 20; ++i) all.push_back(group[0].remote<two_elsewhere>("worker1", "worker2", i));
    for (int i = 0; i != 20; ++i) {
      const auto [a, b] = all[static_cast<std::size_t>(i)].to_here();
      CHECK(a.to_here() == i + 1);
      CHECK(b.to_here() == i + 2);
    }
  }
  await_no_references(group);
}

TEST_CASE("[row 109] a reference is forwarded over eight workers, each with a reference to the next one's result") {
  cluster group(8);
  {
    const rref<int> ref = group[0].remote<add>("worker3", 20, 22);
    hop at = group[0].remote<forward>("worker1", 8, ref).to_here();
    int hops = 0;
    for (; at.next; ++hops) {
      CHECK(at.next.owner().name() == ferry_test::worker_name((hops + 2) % 8));
      at = at.next.as<hop>().to_here();
    }
    CHECK(hops == 8);
    CHECK(at.value == 42);
  }
  await_no_references(group);
}

TEST_CASE("[row 110] a reference to a local object sends no message and has no effect on other workers") {
  cluster group(2);
  const std::uint64_t before = calls_to(group[1], 0) + calls_to(group[1], 1);
  // The current worker is the one that started last: worker0 or worker1.
  const rref<std::string> own(std::string("here"));
  CHECK(own.is_owner());
  CHECK(own.confirmed_by_owner());
  CHECK(own.local_value() == "here");
  own.local_value() += " and now";
  CHECK(own.to_here() == "here and now");
  CHECK(own.created().ready());
  for (int i = 0; i != 2; ++i) {
    CHECK(group[i].debug_info("num_forks") == "0");
    CHECK(group[i].debug_info("num_users") == "0");
    CHECK(group[i].debug_info("num_pending_children") == "0");
    CHECK(calls_to(group[i], 0) == 0);
    CHECK(calls_to(group[i], 1) == 0);
  }
  CHECK(before == 0);
}

TEST_CASE("[row 112] a list of references to objects of the callee is returned; calls change the objects there") {
  cluster group(2);
  {
    const auto list = group[0].rpc_sync<make_counters>("worker1", 5);
    REQUIRE(list.size() == 5);
    for (int i = 0; i != 5; ++i) {
      const auto& each = list[static_cast<std::size_t>(i)];
      CHECK(each.owner_name() == "worker1");
      CHECK(each.rpc_sync<&counter::add>(10) == i + 10);
      CHECK(each.rpc_async<&counter::add>(10).get() == i + 20);
      CHECK(each.rpc_sync<&counter::value>() == i + 20);
    }
    await_figure(group[1], "num_owner_rrefs", "5");
  }
  await_no_references(group);
}

TEST_CASE("[row 117] the owners of references compare equal when they are one worker, and serve as keys") {
  cluster group(2);
  const auto a = group[0].remote<add>("worker1", 1, 1);
  const auto b = group[0].remote<ferry::make<counter>>("worker1", 1);
  const auto c = group[0].remote<add>("worker0", 1, 1);
  CHECK(a.owner() == b.owner());
  CHECK(a.owner() != c.owner());
  CHECK(a.owner() == group[1].info());
  std::unordered_map<ferry::worker_info, int> by_owner;
  ++by_owner[a.owner()];
  ++by_owner[b.owner()];
  ++by_owner[c.owner()];
  CHECK(by_owner.size() == 2);
  CHECK(by_owner[group[1].info()] == 2);
}

TEST_CASE("[row 118] a reference to a local object is passed to a peer, which fetches") {
  cluster group(2);
  const rref<int> own(7);
  const int here = own.owner().id().value;
  ferry::worker& self = group[here];
  const int there = 1 - here;
  CHECK(self.rpc_sync<fetch>(there, own) == 7);
  CHECK(self.rpc_async<fetch>(there, own).get() == 7);
  CHECK(self.remote<fetch>(there, own).to_here() == 7);
  CHECK(self.rpc_sync<fetch>(here, own) == 7);
}

TEST_CASE("[row 120] calls to the owner of a reference, with the reference as argument, change the object") {
  cluster group(2);
  for (const char* where : {"worker1", "worker0"}) {
    CAPTURE(where);
    const auto c = group[0].remote<ferry::make<counter>>(where, 0);
    CHECK(group[0].rpc_sync<add_to_counter>(c.owner(), c, 1) == 1);
    CHECK(group[0].rpc_async<add_to_counter>(c.owner(), c, 2).get() == 3);
    CHECK(group[0].remote<add_to_counter>(c.owner(), c, 3).to_here() == 6);
    CHECK(group[0].rpc_sync<at_hand>(c.owner(), c, 4) == 10);
  }
}

TEST_CASE("[row 121] references print with their ids") {
  cluster group(2);
  const auto text = [](const auto& ref) {
    std::ostringstream out;
    out << ref;
    CHECK(out.str() == to_string(ref));
    return out.str();
  };
  const rref<int> there = group[0].remote<add>("worker1", 1, 2);
  const rref<int> here = group[0].remote<add>("worker0", 1, 2);
  CHECK(text(there).find("rref<i32>(owner=1, object=") == 0);
  CHECK(text(there).find("@0, fork=") != std::string::npos);
  CHECK(text(here).find("rref<i32>(owner=0, object=") == 0);
  CHECK(text(here).find("fork") == std::string::npos);
  CHECK(text(there) != text(here));
  CHECK(text(there) == text(rref<int>(there)));
  CHECK(text(rref<int>()) == "rref<i32>()");
  CHECK(text(any_rref(there)).find("owner=1") != std::string::npos);
}

TEST_CASE("references compare and hash by object, wherever they came from") {
  cluster group(2);
  const rref<int> a = group[0].remote<add>("worker1", 1, 1);
  const rref<int> b = group[0].remote<add>("worker1", 1, 1);
  const rref<int> again = group[0].rpc_sync<back>("worker1", a);
  CHECK(again == a);
  CHECK(again != b);
  CHECK(a != rref<int>());
  CHECK(rref<int>() == rref<int>());
  CHECK(any_rref(a) == any_rref(again));
  CHECK(group[0].rpc_sync<same>("worker1", a, again));
  CHECK(group[0].rpc_sync<same>("worker0", a, again));
  CHECK_FALSE(group[0].rpc_sync<same>("worker1", a, b));
  const std::unordered_set<rref<int>> set{a, b, again};
  CHECK(set.size() == 2);
  std::unordered_map<any_rref, std::string> names{{a, "a"}, {b, "b"}};
  CHECK(names[again] == "a");
}

TEST_CASE("references inside user classes, containers and optionals, in both directions") {
  cluster group(3);
  {
    holdings all;
    all.name = "all";
    for (int i = 0; i != 3; ++i) all.list.push_back(group[0].remote<add>(i, i, 1));
    all.by_name["four"] = group[0].remote<add>("worker2", 2, 2);
    all.one = group[0].remote<add>("worker1", 2, 3);
    all.any = {100, group[0].remote<add>("worker0", 1000, 0)};
    for (int i = 0; i != 3; ++i) {
      CAPTURE(i);
      CHECK(group[0].rpc_sync<total>(i, all) == 6 + 4 + 5 + 1100);
      const holdings same_again = group[0].rpc_sync<echo>(i, all);
      CHECK(same_again.list == all.list);
      CHECK(same_again.by_name == all.by_name);
      CHECK(same_again.one == all.one);
      CHECK(same_again.any == all.any);
      CHECK(total(same_again) == 1115);
    }
  }
  await_no_references(group);
}

TEST_CASE("an empty reference can be sent, and its use is an error that says so") {
  cluster group(2);
  const rref<int> empty;
  CHECK_FALSE(empty);
  CHECK(group[0].rpc_sync<is_empty>("worker1", empty));
  CHECK_FALSE(group[0].rpc_sync<empty_result>("worker1"));
  const auto refused = [&](auto&& use) { expect_error(errc::invalid_argument, "the reference is empty", use); };
  refused([&] { (void)empty.is_owner(); });
  refused([&] { (void)empty.owner(); });
  refused([&] { (void)empty.owner_name(); });
  refused([&] { (void)empty.confirmed_by_owner(); });
  refused([&] { (void)empty.created(); });
  refused([&] { (void)empty.local_value(); });
  refused([&] { (void)empty.to_here(); });
  refused([&] { (void)empty.to_here_async(); });
  refused([&] { (void)empty.rpc_sync<plus>(1); });
  refused([&] { (void)empty.rpc_async<plus>(1); });
  refused([&] { (void)empty.remote<plus>(1); });
  refused([&] { empty.notify<plus>(1); });
  refused([&] { (void)any_rref().type(); });
  rref<int> moved = group[0].remote<add>("worker1", 1, 1);
  const rref<int> taken = std::move(moved);
  refused([&] { (void)moved.to_here(); });  // NOLINT(bugprone-use-after-move)
  CHECK(taken.to_here() == 2);
}

TEST_CASE("the same reference twice in one message is one") {
  cluster group(3);
  {
    const rref<int> a = group[0].remote<add>("worker1", 1, 1);
    a.created().get();
    CHECK(group[0].rpc_sync<same>("worker2", a, a));
    const rref<int> copy = a;
    CHECK(group[0].rpc_sync<same>("worker2", a, copy));
    CHECK(group[0].rpc_sync<same>("worker2", a, group[0].rpc_sync<back>("worker2", a)));
  }
  await_no_references(group);
}

TEST_CASE("a reference that a handler stores outlives the caller's") {
  cluster group(3);
  {
    const rref<int> a = group[0].remote<add>("worker1", 20, 22);
    group[0].rpc_sync<keep>("worker2", a);
  }
  await_figure(group[0], "num_users", "0");
  CHECK(group[1].debug_info("num_owner_rrefs") == "1");
  CHECK(group[0].rpc_sync<use_kept>("worker2") == 42);
  await_no_references(group);
}

TEST_CASE("asynchronous handlers use references, which are confirmed when they begin") {
  cluster group(3);
  const rref<int> a = group[0].remote<add>("worker1", 3, 4);
  for (const char* where : {"worker0", "worker1", "worker2"}) {
    CAPTURE(where);
    CHECK(group[0].rpc_sync<fetch_later>(where, a) == 7);
    CHECK(group[0].rpc_sync<fetch_in_a_task>(where, a) == 15);
    const rref<int> left_there = group[0].remote<fetch_in_a_task>(where, a);
    CHECK(left_there.owner_name() == where);
    CHECK(left_there.to_here() == 15);
  }
}

TEST_CASE("wait_all waits for calls on references") {
  cluster group(2);
  const auto c = group[0].remote<ferry::make<counter>>("worker1", 0);
  ferry::wait_all([&] {
    for (int i = 0; i != 20; ++i) (void)c.rpc_async<&counter::add>(1);
  });
  CHECK(c.rpc_sync<&counter::value>() == 20);
  const auto broken = group[0].remote<refuse>("worker1", "no such thing");
  CHECK_THROWS_AS(ferry::wait_all([&] { (void)broken.rpc_async<plus>(1); }), std::invalid_argument);
}

TEST_CASE("sending a reference of another worker of this process is an error") {
  cluster group(2);
  const rref<int> of_first = group[0].remote<add>("worker0", 1, 1);
  expect_error(errc::invalid_argument, "another worker of this process",
               [&] { (void)group[1].rpc_sync<fetch>("worker0", of_first); });
  // Calls on it are made by the worker that the reference belongs to.
  CHECK(of_first.rpc_sync<plus>(1) == 3);
  await_figure(group[1], "num_users", "0");
}

}  // namespace reference_arguments_test

// Calls that wait until the owners of references among their arguments have confirmed them.

#include <chrono>
#include <string>

#include <doctest/doctest.h>

#include "captured_log.hpp"
#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "references.hpp"

namespace reference_confirmation_test {

using ferry::errc;
using ferry::fault_action;
using ferry::message_kinds;
using ferry::rref;
using ferry_test::captured_log;
using namespace references_test;
using namespace std::chrono_literals;

class tally {
 public:
  int note(int value) { return last_ = value; }
  int note_of(const rref<tracked>& of, int value) {
    if (!of.confirmed_by_owner()) throw std::logic_error("the reference is not confirmed");
    return last_ = value;
  }
  [[nodiscard]] int last() const { return last_; }

 private:
  int last_ = 0;
};
struct exclusive_tally : tally {};
struct ordered_tally : tally {};

// Drops reference controls from worker 1 to worker 2.
void keep_unconfirmed(faulty_cluster& group) {
  group.faults(1).add(
      {.action = fault_action::fail, .kinds = message_kinds::request, .method = "ferry/references", .peer = "worker2"});
}
std::size_t held_back(const ferry::worker& at) {
  std::size_t count = 0;
  for (const auto& each : at.served_calls()) {
    if (each.phase == ferry::served_phase::held) ++count;
  }
  return count;
}

}  // namespace reference_confirmation_test

template <>
struct ferry::object_traits<reference_confirmation_test::exclusive_tally> {
  static constexpr auto execution = ferry::execution::exclusive;
};
template <>
struct ferry::object_traits<reference_confirmation_test::ordered_tally> {
  static constexpr auto execution = ferry::execution::ordered;
};

namespace reference_confirmation_test {

TEST_CASE("exclusive: calls overtake a call with unconfirmed references") {
  faulty_cluster group(3);
  {
    const auto object = group[0].remote<ferry::make<exclusive_tally>>("worker1");
    const auto argument = group[0].remote<ferry::make<tracked>>("worker2", 1);
    object.created().get();
    argument.created().get();
    keep_unconfirmed(group);
    const auto first = object.rpc_async<&tally::note_of>(argument, 1);
    await([&] { return held_back(group[1]) == 1; });
    CHECK(object.rpc_sync<&tally::note>(2) == 2);
    CHECK(object.rpc_sync<&tally::note>(3) == 3);
    CHECK_FALSE(first.ready());
    group.faults(1).clear();
    CHECK(first.get() == 1);
    CHECK(object.rpc_sync<&tally::last>() == 1);
  }
  await_no_references(group);
}

TEST_CASE(
    "ordered: a call with unconfirmed references blocks later calls of its caller, but not those of other callers") {
  faulty_cluster group(3);
  {
    const auto object = group[0].remote<ferry::make<ordered_tally>>("worker1");
    const auto argument = group[0].remote<ferry::make<tracked>>("worker2", 1);
    object.created().get();
    argument.created().get();
    keep_unconfirmed(group);
    const auto first = object.rpc_async<&tally::note_of>(argument, 1);
    await([&] { return held_back(group[1]) == 1; });
    const auto second = object.rpc_async<&tally::note>(2);
    await([&] { return held_back(group[1]) == 2; });
    const rref<ordered_tally> own(group[1].make_rref<ordered_tally>(std::in_place));
    CHECK(own.rpc_sync<&tally::note>(3) == 3);
    CHECK_FALSE(first.ready());
    CHECK_FALSE(second.ready());
    group.faults(1).clear();
    CHECK(first.get() == 1);
    CHECK(second.get() == 2);
    CHECK(object.rpc_sync<&tally::last>() == 2);
  }
  await_no_references(group);
}

rref<int> of_another_worker() {
  rref<int> made = ferry::remote<add>("worker2", 3, 4);
  made.created().get();
  return made;
}

TEST_CASE("what created() gives out completes although the reference is dropped before its owner has registered it") {
  ferry_test::cluster group(3);
  for (int i = 0; i != 100; ++i) {
    rref<int> received = group[0].rpc_sync<of_another_worker>("worker1");
    const ferry::future<void> registered = received.created();
    received = {};
    REQUIRE(registered.wait_for(60s));
    if (registered.error())
      expect_error(errc::reference_deleted, "the last handle was dropped", [&] { registered.get(); });
  }
}

TEST_CASE("a call that is given up while its references are not confirmed keeps nothing until its deadline") {
  faulty_cluster group(3);
  {
    const auto object = group[0].remote<ferry::make<exclusive_tally>>("worker1");
    const auto argument = group[0].remote<ferry::make<tracked>>("worker2", 1);
    object.created().get();
    argument.created().get();
    keep_unconfirmed(group);
    const auto call = object.rpc_async<&tally::note_of>({.timeout = 10min}, argument, 1);
    await([&] { return held_back(group[1]) == 1; });
    call.cancel();
    await([&] { return held_back(group[1]) == 0; });
    group.faults(1).clear();
  }
  await_no_references(group);
}

TEST_CASE("a call whose references are never confirmed ends at its deadline, without remains at either end") {
  const captured_log logged(ferry::log_level::info);
  faulty_cluster group(3);
  {
    const auto object = group[0].remote<ferry::make<exclusive_tally>>("worker1");
    const auto argument = group[0].remote<ferry::make<tracked>>("worker2", 1);
    object.created().get();
    argument.created().get();
    keep_unconfirmed(group);
    const auto text = "note_of' from worker_info(id=0, name=worker0) to worker_info(id=1, name=worker1)";
    expect_error(errc::rpc_timeout, text,
                 [&] { (void)object.rpc_sync<&tally::note_of>({.timeout = 300ms}, argument, 1); });
    expect_timeout("while waiting for",
                   [&] { (void)object.rpc_sync<&tally::note_of>({.timeout = 300ms}, argument, 1); });
    expect_timeout("while waiting for", [&] {
      (void)group[0].rpc_sync<touch>({"worker1", {.timeout = 300ms}}, argument);
    });
    await([&] { return held_back(group[1]) == 0; });
    await([&] { return logged.has("worker1", "note_of", "the owners of references among its arguments"); });
    CHECK(object.rpc_sync<&tally::last>() == 0);
    group.faults(1).clear();
    CHECK(object.rpc_sync<&tally::note_of>(argument, 4) == 4);
  }
  await_no_references(group);
}

}  // namespace reference_confirmation_test

#include <ferry/rpc/to.hpp>

#include <concepts>
#include <limits>
#include <stop_token>
#include <string>
#include <string_view>
#include <type_traits>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace to_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::to;

int who_am_i() { return ferry::get_worker_info().id().value; }

using to_test::who_am_i;

static_assert(std::convertible_to<const char*, to>);
static_assert(std::convertible_to<std::string, to>);
static_assert(std::convertible_to<std::string_view, to>);
static_assert(std::convertible_to<int, to>);
static_assert(std::convertible_to<short, to>);
static_assert(std::convertible_to<std::size_t, to>);
static_assert(std::convertible_to<ferry::worker_id, to>);
static_assert(std::convertible_to<ferry::worker_info, to>);
static_assert(!std::convertible_to<double, to>);
static_assert(!std::convertible_to<float, to>);
static_assert(!std::convertible_to<bool, to>);
static_assert(!std::convertible_to<void*, to>);
static_assert(std::is_trivially_destructible_v<ferry::call_options>);
static_assert(std::is_trivially_destructible_v<to>);

TEST_CASE("[row 22] the destination may be an id, in every call form; one outside the group is an error at once") {
  ferry_test::cluster group(3);
  for (int rank = 0; rank != 3; ++rank) {
    CHECK(group[0].rpc_sync<who_am_i>(rank) == rank);
    CHECK(group[0].rpc_async<who_am_i>(rank).get() == rank);
    CHECK(ferry::rpc_sync<who_am_i>(rank) == rank);
    CHECK(ferry::rpc_async<who_am_i>(rank).get() == rank);
  }
  for (const long wrong :
       {3L, 1000000L, -1L, -12345L, std::numeric_limits<long>::max(), std::numeric_limits<long>::min()}) {
    CAPTURE(wrong);
    expect_error(errc::unknown_worker, "could not find destination", [&] { (void)group[0].rpc_sync<who_am_i>(wrong); });
    expect_error(errc::unknown_worker, "could not find destination",
                 [&] { (void)group[0].rpc_async<who_am_i>(wrong); });
    expect_error(errc::unknown_worker, "could not find destination", [&] { group[0].notify<who_am_i>(wrong); });
  }
}

TEST_CASE("a destination has every natural spelling") {
  ferry_test::cluster group(2);
  ferry::worker& self = group[0];
  const std::string name = "worker1";
  const std::string_view view = name;
  const ferry::worker_info info = self.get_worker_info(name);
  CHECK(self.rpc_sync<who_am_i>("worker1") == 1);
  CHECK(self.rpc_sync<who_am_i>(name) == 1);
  CHECK(self.rpc_sync<who_am_i>(view) == 1);
  CHECK(self.rpc_sync<who_am_i>(view.substr(0)) == 1);
  CHECK(self.rpc_sync<who_am_i>(1) == 1);
  CHECK(self.rpc_sync<who_am_i>(1U) == 1);
  CHECK(self.rpc_sync<who_am_i>(std::int8_t{1}) == 1);
  CHECK(self.rpc_sync<who_am_i>(ferry::worker_id{1}) == 1);
  CHECK(self.rpc_sync<who_am_i>(info) == 1);
  CHECK(self.rpc_sync<who_am_i>({"worker1"}) == 1);
  std::stop_source stop;
  CHECK(self.rpc_sync<who_am_i>({"worker1", {.timeout = 60s}}) == 1);
  CHECK(self.rpc_sync<who_am_i>({name, {.timeout = 60s, .stop = stop.get_token()}}) == 1);
  CHECK(self.rpc_sync<who_am_i>({view, {.stop = stop.get_token()}}) == 1);
  CHECK(self.rpc_sync<who_am_i>({1, {.timeout = ferry::no_timeout}}) == 1);
  CHECK(self.rpc_sync<who_am_i>({info, {.timeout = 0s}}) == 1);
  CHECK(self.rpc_sync<who_am_i>({info.id(), {.timeout = 60'000ms}}) == 1);
}

TEST_CASE("an unknown name, and a worker_info of another group, are errors at once") {
  ferry_test::cluster group(2);
  expect_error(errc::unknown_worker, "could not find destination 'worker7'",
               [&] { (void)group[1].rpc_sync<who_am_i>("worker7"); });
  expect_error(errc::unknown_worker, "there are 'worker0', 'worker1'",
               [&] { (void)group[1].rpc_sync<who_am_i>("worker7"); });
  expect_error(errc::unknown_worker, "worker_info(id=1, name=worker1)",
               [&] { (void)group[1].rpc_async<who_am_i>("worker7"); });
  expect_error(errc::unknown_worker, "''", [&] { (void)group[1].rpc_sync<who_am_i>(""); });
  expect_error(errc::unknown_worker, "stranger",
               [&] { (void)group[1].rpc_sync<who_am_i>(ferry::worker_info("stranger", 1)); });
  expect_error(errc::unknown_worker, "", [&] { (void)group[1].rpc_sync<who_am_i>(ferry::worker_info("worker1", 9)); });
  CHECK(group[1].rpc_sync<who_am_i>("worker0") == 0);
  CHECK(group[1].id() == 1);
  CHECK(group[1].id() != -1);
}

}  // namespace to_test

// A program that has a copy of the C++ runtime of its own, beside libferry's: exceptions go between both.

#include <stdexcept>

#include <doctest/doctest.h>

#include <ferry/ferry.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace own_runtime_test {

int refuses(int) { throw std::invalid_argument("refused"); }
int misshapes(int) { ferry::throw_error(ferry::errc::bad_shape, "of its own"); }

TEST_CASE("exceptions of methods, errors of calls and those of continuations are what they were") {
  ferry_test::cluster group(2);
  CHECK_THROWS_WITH_AS(group[0].rpc_sync<refuses>("worker1", 1), "refused", std::invalid_argument);
  const auto expect = [](ferry::errc kind, const auto& action) { expect_error(kind, "", action); };
  expect(ferry::errc::bad_shape, [&] { (void)group[0].rpc_sync<misshapes>("worker1", 1); });
  expect(ferry::errc::bad_shape, [&] { (void)group[0].rpc_async<misshapes>("worker1", 1).get(); });
  expect(ferry::errc::bad_shape,
         [&] { (void)group[0].rpc_async<misshapes>("worker1", 1).then([](int value) { return value + 1; }).get(); });
  expect(ferry::errc::unknown_worker, [&] { (void)group[0].rpc_sync<refuses>("nowhere", 1); });
}

}  // namespace own_runtime_test

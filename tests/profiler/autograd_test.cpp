// Profiles of passes, and of calls within contexts of distributed autograd.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"

namespace profiled_autograd_test {

namespace dist = ferry::dist_autograd;
namespace profiler = ferry::profiler;
using ferry::range_kind;
using ferry::tensor;
using ferry_test::cluster;
using profiler::event;
using profiler::profile;

tensor plus(const tensor& a, const tensor& b) { return a + b; }
tensor twice(const tensor& a) { return a * 2.0; }
tensor there_and_back(const std::string& other, const tensor& a) {
  return ferry::rpc_sync<twice>(other, a + 1.0) * 3.0;
}
tensor leaf() { return ferry::require_grad(ferry::ones({3}, ferry::dtype::f64)); }

std::size_t ending_with(const profile& from, std::string_view end) {
  std::size_t count = 0;
  for (const event& each : from.events) count += each.name.ends_with(end) ? 1 : 0;
  return count;
}
const event& the_one(const profile& from, std::string_view end) {
  REQUIRE(ending_with(from, end) == 1);
  for (const event& each : from.events) {
    if (each.name.ends_with(end)) return each;
  }
  FAIL("unreachable");
  return from.events.front();
}
void check_remote_add(const profile& found) {
  REQUIRE(ending_with(found, "#remote_op: add") >= 1);
  for (const event& each : found.events) {
    if (!each.name.ends_with("#remote_op: add")) continue;
    CHECK(each.node == 1);
    CHECK(each.remote);
  }
}
// Those that ran at one worker.
std::vector<const event*> at_worker(const profile& from, std::int32_t node, std::string_view end) {
  std::vector<const event*> all;
  for (const event& each : from.events) {
    if (each.node == node && each.name.ends_with(end)) all.push_back(&each);
  }
  return all;
}

TEST_CASE("[row 181] a session within a context of distributed autograd, and the other way round") {
  cluster group(2);
  const tensor a = leaf();
  const tensor b = leaf();
  {
    const dist::context context(group[0]);
    profiler::session recorded(group[0]);
    const tensor sum = group[0].rpc_sync<plus>("worker1", a, b);
    check_remote_add(recorded.finish());
    context.backward(ferry::sum(sum));
    CHECK(context.gradients().contains(a));
  }
  {
    profiler::session recorded(group[0]);
    const dist::context context(group[0]);
    const tensor sum = group[0].rpc_sync<plus>("worker1", a, b);
    context.backward(ferry::sum(sum));
    CHECK(context.gradients().contains(a));
    check_remote_add(recorded.finish());
  }
}

TEST_CASE("[row 189] a distributed pass is one event, with one for the gradients that go and one for those that come") {
  cluster group(2);
  const tensor a = leaf();
  const tensor b = leaf();
  const dist::context context(group[0]);
  const tensor loss = ferry::sum(group[0].rpc_sync<plus>("worker1", a, b));
  profiler::session recorded(group[0]);
  context.backward(loss);
  const profile found = recorded.finish();
  const event& pass = the_one(found, "dist_autograd::backward");
  CHECK(pass.kind == range_kind::autograd);
  CHECK(pass.node == 0);
  // Each worker has sent one message with gradients, and has received one.
  for (const std::int32_t node : {0, 1}) {
    CAPTURE(node);
    for (const std::string_view end : {"dist_autograd::send backward", "dist_autograd::recv backward"}) {
      const std::vector<const event*> one = at_worker(found, node, end);
      REQUIRE(one.size() == 1);
      CHECK(one.front()->duration_ns() < pass.duration_ns());
    }
  }
}

// Gradients come back to a worker whose threads may or may not be at its part of the pass.
TEST_CASE("the profile of a pass that comes back to its first worker has all of it, on every run") {
  cluster group(2);
  for (int run = 0; run != 50; ++run) {
    CAPTURE(run);
    const tensor a = leaf();
    const dist::context context(group[0]);
    const tensor loss = ferry::sum(group[0].rpc_sync<there_and_back>("worker1", "worker0", a));
    profiler::session recorded(group[0]);
    context.backward(loss);
    const profile found = recorded.finish();
    CHECK(found.lost == 0);
    CHECK(found.unfinished == 0);
    const event& pass = the_one(found, "dist_autograd::backward");
    for (const std::int32_t node : {0, 1}) {
      CAPTURE(node);
      CHECK(at_worker(found, node, "dist_autograd::send backward").size() == 2);
      CHECK(at_worker(found, node, "dist_autograd::recv backward").size() == 2);
      CHECK(at_worker(found, node, "mul_scalar").size() == 1);
      for (const event* each : at_worker(found, node, "mul_scalar")) {
        CHECK(each->began_ns + each->uncertainty_ns >= pass.began_ns);
        CHECK(each->remote == (node == 1));
      }
    }
  }
}

TEST_CASE("a pass on one worker is an event, with the operations of its formulas") {
  cluster group(1);
  const tensor a = leaf();
  const tensor loss = ferry::sum(a * a);
  profiler::session recorded(group[0]);
  ferry::backward(loss);
  const profile found = recorded.finish();
  const event& pass = the_one(found, "backward");
  CHECK(pass.kind == range_kind::autograd);
  CHECK(found.children(pass).size() >= 2);
}

}  // namespace profiled_autograd_test

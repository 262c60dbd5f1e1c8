// Gradients through remote calls: those of the same computation on one worker.

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>

#include <vector>

#include <doctest/doctest.h>

#include "cluster.hpp"
#include "expect_error.hpp"

using ferry::errc;
using ferry::tensor;
using ferry_test::cluster;
namespace dist = ferry::dist_autograd;

namespace dist_backward_test {

tensor add(const tensor& a, const tensor& b) { return a + b; }
tensor mul(const tensor& a, const tensor& b) { return a * b; }
// Worker `next` multiplies, this one adds.
tensor add_product(const tensor& a, const tensor& b, const std::string& next) {
  return a + ferry::rpc_sync<mul>(next, a, b);
}

tensor leaf(std::initializer_list<double> values) { return ferry::require_grad(ferry::tensor_of(values)); }
std::vector<double> numbers(const tensor& t) {
  const tensor dense = t.contiguous();
  const auto* first = dense.data<double>();
  return {first, first + dense.numel()};
}

}  // namespace dist_backward_test

using namespace dist_backward_test;

TEST_CASE("gradients go back through a call") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<mul>("worker1", a, b);
  REQUIRE(c.requires_grad());
  dist::backward(context, ferry::sum(c * 2.0));
  const dist::gradient_map found = context.gradients();
  CHECK(found.size() == 2);
  CHECK(numbers(found[a]) == std::vector<double>{8, 10, 12});
  CHECK(numbers(found[b]) == std::vector<double>{2, 4, 6});
  CHECK_FALSE(ferry::grad(a).defined());
}

TEST_CASE("gradients go back through nested calls, and calls to oneself") {
  cluster group(3);
  for (const char* next : {"worker2", "worker1", "worker0"}) {
    const tensor a = leaf({1, 2, 3});
    const tensor b = leaf({4, 5, 6});
    const dist::context context(group[0]);
    const tensor c = group[0].rpc_sync<add_product>("worker1", a, b, next);
    const tensor d = group[0].rpc_sync<add>("worker0", c, a);
    dist::backward(context, ferry::sum(d));
    CHECK(numbers(context.gradients().at(a)) == std::vector<double>{6, 7, 8});
    CHECK(numbers(context.gradients().at(b)) == std::vector<double>{1, 2, 3});
  }
}

TEST_CASE("results that are not used neither hang a smart pass nor cost zeros") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor used = group[0].rpc_sync<mul>("worker1", a, b);
  const tensor unused = group[0].rpc_sync<mul>("worker1", used, b);
  dist::backward(context, ferry::sum(used));
  CHECK(numbers(context.gradients()[a]) == std::vector<double>{4, 5, 6});
  CHECK(numbers(context.gradients()[b]) == std::vector<double>{1, 2, 3});
}

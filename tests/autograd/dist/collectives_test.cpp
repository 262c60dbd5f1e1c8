#include <ferry/autograd/collectives.hpp>

#include <chrono>
#include <string>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace collectives_test {

using namespace std::chrono_literals;
using ferry::errc;
using ferry::process_group;
using ferry::reduce_op;
using ferry::tensor;
using ferry_test::run_cluster;

tensor leaf(double value) { return ferry::require_grad(ferry::full({2}, value, ferry::dtype::f64)); }
double first(const tensor& t) { return t.contiguous().view({-1}).at<double>(0); }

TEST_CASE("gradients go through all_reduce: each member gets those of all") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const int rank = group.rank();
    for (const reduce_op op : {reduce_op::sum, reduce_op::avg}) {
      const tensor x = leaf(rank + 1);
      const tensor y = ferry::all_reduce(group, x, op);
      CHECK(first(y) == (op == reduce_op::sum ? 6 : 2));
      CHECK(first(x) == rank + 1);
      // The loss of member r is (r + 1) * sum(y), that of all together the sum of these.
      ferry::backward(ferry::sum(y * static_cast<double>(rank + 1)));
      CHECK(first(ferry::grad(x)) == (op == reduce_op::sum ? 6 : 2));
    }
    const tensor x = leaf(1);
    expect_error(errc::invalid_argument, "max has no gradient",
                 [&] { (void)ferry::all_reduce(group, x, reduce_op::max); });
    CHECK(first(ferry::all_reduce(group, ferry::full({2}, rank, ferry::dtype::f64), reduce_op::max)) == 2);
  });
}

TEST_CASE("gradients go through broadcast to the root, and through all_gather to each member") {
  run_cluster(3, [](ferry::worker& self) {
    const process_group group(self);
    const int rank = group.rank();
    const tensor x = leaf(rank + 1);
    const tensor y = ferry::broadcast(group, x, 1);
    CHECK(first(y) == 2);
    ferry::backward(ferry::sum(y * static_cast<double>(rank + 1)));
    CHECK(first(ferry::grad(x)) == (rank == 1 ? 6 : 0));

    const tensor own = leaf(rank + 1);
    const tensor all = ferry::all_gather(group, own);
    CHECK(all.shape() == ferry::dims{3, 2});
    CHECK(first(all.select(0, 2)) == 3);
    // d/d own of sum over members m of (m + 1) * sum(all^2) is 6 * 2 * own.
    ferry::backward(ferry::sum(all * all) * static_cast<double>(rank + 1));
    CHECK(first(ferry::grad(own)) == 12 * (rank + 1));
  });
}

TEST_CASE("gradients of like collectives in different orders are a mismatch, not a wrong sum") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor a = leaf(1);
    const tensor b = leaf(2);
    const tensor of_a = ferry::sum(ferry::all_reduce(group, a));
    const tensor of_b = ferry::sum(ferry::all_reduce(group, b));
    const bool turned = group.rank() == 1;
    expect_error(errc::group_mismatch, "gradient of collective", [&] { ferry::backward(turned ? of_b : of_a); });
    expect_error(errc::group_mismatch, "gradient of collective", [&] { ferry::backward(turned ? of_a : of_b); });
  });
}

TEST_CASE("a member that does not go back through a collective is named") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const tensor a = leaf(1);
    const tensor y = ferry::sum(ferry::all_reduce(group, a, reduce_op::sum, 10s));
    if (group.rank() == 0) expect_error(errc::rpc_timeout, "not called by worker1", [&] { ferry::backward(y); });
    self.barrier();
  });
}

}  // namespace collectives_test

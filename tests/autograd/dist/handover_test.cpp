// Tensors that are given to calls within the process, beside gradients.

#include <utility>
#include <vector>

#include "dist_test.hpp"

namespace dist_handover_test {

using namespace dist_test;

tensor overwritten(tensor t) {
  t.fill_(0);
  return t;
}
tensor scaled(tensor t, double by) { return t * by; }
ferry::task<tensor> scaled_later(tensor t, double by) {
  const tensor same = co_await ferry::rpc_async<scaled>(ferry::this_call().caller(), std::move(t), 1.0);
  co_return same* by;
}

TEST_CASE("tensors that are given to a call have the gradients that those which are kept have") {
  cluster group(2);
  for (const char* peer : {"worker1", "worker0"}) {
    (void)group[0].rpc_sync<scaled>(peer, ferry::ones({1}), 1.0);  // the first call to a worker copies
    const tensor a = leaf({1, 2, 3});
    const dist::context context(group[0]);
    tensor b = a * 2.0;
    tensor c = group[0].rpc_sync<scaled>(peer, std::move(b), 3.0);
    CHECK_FALSE(b.defined());
    REQUIRE(c.requires_grad());
    c = group[0].rpc_sync<scaled_later>(peer, std::move(c), 5.0);
    c = group[0].rpc_sync<scaled>(peer, c * 1.0, 7.0);
    CHECK(numbers(c) == vec{210, 420, 630});
    context.backward(ferry::sum(c));
    CHECK(numbers(context.gradients().at(a)) == vec{210, 210, 210});
  }
}

TEST_CASE("what a graph has saved is not handed over") {
  cluster group(2);
  const tensor weight = leaf({1, 2, 3});
  const dist::context context(group[0]);
  tensor factor = ferry::tensor_of({5., 6., 7.});
  const tensor product = weight * factor;  // keeps the factor for the gradient of the weight
  CHECK(numbers(group[0].rpc_sync<overwritten>("worker1", std::move(factor))) == vec{0, 0, 0});
  context.backward(ferry::sum(product));
  CHECK(numbers(context.gradients().at(weight)) == vec{5, 6, 7});
}

TEST_CASE("a leaf that is given to a call keeps its gradient") {
  cluster group(2);
  tensor a = leaf({1, 2, 3});
  const tensor kept = a;
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<scaled>("worker1", std::move(a), 2.0);
  context.backward(ferry::sum(c));
  CHECK(numbers(context.gradients().at(kept)) == vec{2, 2, 2});
  CHECK(numbers(kept) == vec{1, 2, 3});
}

}  // namespace dist_handover_test

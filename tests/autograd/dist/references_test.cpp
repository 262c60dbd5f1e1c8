// Passes whose roots, and leaves, are objects of references.

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ferry/rpc/rref.hpp>

#include "dist_test.hpp"
#include "gate.hpp"

namespace references_test {

using namespace dist_test;
using ferry::rref;

tensor make_leaf(const vec& values) { return ferry::require_grad(ferry::from_vector(values)); }
tensor value_sum(const tensor& a, const tensor& b) { return ferry::sum(a * b); }
tensor no_gradient() { return ferry::tensor_of({1.}); }
// Of a reference: fetched, or used by its owner.
tensor times_object(const tensor& a, const rref<tensor>& b) { return a * b.to_here(); }
vec gradient_of_object(dist::context_id id, const rref<tensor>& object) {
  const auto found = dist::get_gradients(id);
  return found.contains(object.local_value()) ? numbers(found.at(object.local_value())) : vec{};
}

// A module of a parameter server: its weight is used by several trainers.
class server {
 public:
  explicit server(const vec& values) : weight_(make_leaf(values)) {}
  tensor forward(const tensor& x) { return x * weight_; }
  vec gradient(dist::context_id id) { return numbers(dist::get_gradients(id).at(weight_)); }

 private:
  tensor weight_;
};

// A trainer: returns what the server's weight has as gradient in its own context.
std::pair<vec, vec> train(const rref<server>& at, double scale) {
  const dist::context context;
  const tensor x = leaf({1, 2, 3});
  const tensor y = at.rpc_sync<&server::forward>(x) * scale;
  context.backward(ferry::sum(y));
  return {numbers(context.gradients().at(x)), at.rpc_sync<&server::gradient>(context.id())};
}

ferry_test::gate* gate_of_root = nullptr;
tensor gated_root(const tensor& a) {
  gate_of_root->pass();
  return ferry::sum(a * 3.0);
}
ferry_test::gate slow;
tensor slow_root(const tensor& a) {
  slow.pass();
  return ferry::sum(a * 3.0);
}

TEST_CASE("[row 249] leaves behind references: the caller gets its gradient, the owner the other") {
  cluster group(3);
  const tensor a = leaf({1, 2, 3});
  const auto weight = group[0].remote<make_leaf>("worker1", vec{4, 5, 6});
  // By the owner itself, and by a third worker.
  for (const char* callee : {"worker1", "worker2"}) {
    const dist::context context(group[0]);
    context.backward(ferry::sum(group[0].rpc_sync<times_object>(callee, a, weight)));
    CHECK(numbers(context.gradients().at(a)) == vec{4, 5, 6});
    CHECK(group[0].rpc_sync<gradient_of_object>("worker1", context.id(), weight) == vec{1, 2, 3});
    if (dist::exists(context, group[2])) {
      CHECK(dist::get_gradients(context, group[2]).empty());
    }
  }
  // By several callers, one after the other.
  const dist::context context(group[0]);
  const tensor one = group[0].rpc_sync<times_object>("worker1", a, weight);
  const tensor two = group[0].rpc_sync<times_object>("worker2", one, weight);
  context.backward(ferry::sum(two * weight.to_here()));
  CHECK(numbers(context.gradients().at(a)) == vec{64, 125, 216});
  CHECK(group[0].rpc_sync<gradient_of_object>("worker1", context.id(), weight) == vec{3 * 16, 3 * 25 * 2, 3 * 36 * 3});
}

TEST_CASE("[row 250] a parameter server and three trainers, each with a context of its own") {
  cluster group(4);
  const auto at = group[1].make_rref<server>(std::in_place, vec{4, 5, 6});
  std::vector<ferry::future<std::pair<vec, vec>>> results;
  for (int round = 0; round != 10; ++round) {
    for (const int trainer : {0, 2, 3}) results.push_back(group[1].rpc_async<train>(trainer, at, trainer + 1.));
  }
  for (std::size_t i = 0; i != results.size(); ++i) {
    const double scale = std::vector<double>{1, 3, 4}[i % 3];
    const auto [own, remote] = results[i].get();
    CHECK(own == vec{4 * scale, 5 * scale, 6 * scale});
    CHECK(remote == vec{scale, 2 * scale, 3 * scale});
  }
  await_no_contexts(group);
}

TEST_CASE("[row 284] a reference as root at its owner") {
  cluster group(2);
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  {
    // Without a context: an ordinary pass.
    const auto root = group[0].make_rref<tensor>(std::in_place, value_sum(a, b));
    dist::backward(root, true);
    CHECK(numbers(ferry::grad(a)) == vec{3, 4});
    dist::backward(root, true);
    CHECK(numbers(ferry::grad(a)) == vec{6, 8});
    ferry::set_grad(a, tensor());
    const auto flat = group[0].make_rref<tensor>(std::in_place, no_gradient());
    expect_error(errc::invalid_argument, "", [&] { dist::backward(flat); });
    const auto large = group[0].make_rref<tensor>(std::in_place, a * b);
    expect_error(errc::invalid_argument, "", [&] { dist::backward(large); });
  }
  const dist::context context(group[0]);
  const auto root = group[0].make_rref<tensor>(std::in_place, ferry::sum(group[0].rpc_sync<mul>("worker1", a, b)));
  dist::backward(root, context, {.retain_graph = true});
  CHECK(numbers(context.gradients().at(a)) == vec{3, 4});
  dist::backward(root, context, {.retain_graph = true});
  CHECK(numbers(context.gradients().at(a)) == vec{6, 8});
  CHECK_FALSE(ferry::grad(a).defined());
  const auto flat = group[0].make_rref<tensor>(std::in_place, no_gradient());
  expect_error(errc::invalid_argument, "requires no gradient", [&] { dist::backward(flat, context); });
  const auto large = group[0].make_rref<tensor>(std::in_place, a * b);
  expect_error(errc::invalid_argument, "single element", [&] { dist::backward(large, context); });
  expect_error(errc::invalid_argument, "could not find context", [&] { dist::backward(root, dist::context_id{77}); });
  expect_error(errc::invalid_argument, "takes no gradients",
               [&] { dist::backward(root, context, {.gradients = {ferry::tensor_of({1.})}}); });
}

TEST_CASE("[row 285] a reference as root at another worker: its owner begins the pass") {
  cluster group(3);
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  const dist::context context(group[0]);
  const auto root = group[0].remote<value_sum>("worker1", a, b);
  dist::backward(root, context, {.retain_graph = true});
  CHECK(numbers(context.gradients().at(a)) == vec{3, 4});
  dist::backward(root, context, {.retain_graph = true});
  CHECK(numbers(context.gradients().at(b)) == vec{2, 4});
  expect_error(errc::not_owner, "needs a context", [&] { dist::backward(root); });
  expect_error(errc::invalid_argument, "could not find context", [&] { dist::backward(root, dist::context_id{77}); });
  const auto flat = group[0].remote<no_gradient>("worker2");
  expect_error(errc::invalid_argument, "requires no gradient", [&] { dist::backward(flat, context); });
  const auto large = group[0].remote<mul>("worker1", a, b);
  expect_error(errc::invalid_argument, "single element", [&] { dist::backward(large, context); });
  // Passes with other roots, here: one after the other.
  context.backward(root.to_here());
  CHECK(numbers(context.gradients().at(a)) == vec{9, 12});
  // A value that is not there yet is waited for, but no longer than the limit.
  {
    ferry_test::gate never;
    gate_of_root = &never;
    const auto unmade = group[0].remote<gated_root>("worker2", a);
    never.await_arrivals(1);
    expect_error(errc::rpc_timeout, "",
                 [&] { dist::backward(unmade, context, {.limit = std::chrono::milliseconds(50)}); });
    never.open();
    (void)unmade.to_here();
  }
  const auto later = group[0].remote<slow_root>("worker2", a);
  std::jthread opens([] {
    slow.await_arrivals(1);
    slow.open();
  });
  dist::backward(later, context);
  CHECK(numbers(context.gradients().at(a)) == vec{12, 15});
  opens.join();
  slow.reset();
}

}  // namespace references_test

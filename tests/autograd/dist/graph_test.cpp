// What a context records on each worker: where tensors leave and enter it.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ferry/autograd/node.hpp>

#include "autograd/dist/wire_nodes.hpp"
#include "dist_test.hpp"

namespace graph_test {

using namespace dist_test;

using edges = std::vector<std::string>;

// The names of the nodes to which the gradients of a message go.
edges kinds(const dist::context_send& sent) {
  edges result;
  for (const std::string& each : sent.edges) result.push_back(each.substr(0, each.find(' ')));
  return result;
}
std::vector<int> ids(const std::vector<ferry::worker_id>& workers) {
  std::vector<int> result;
  for (const auto each : workers) result.push_back(each.value);
  return result;
}

// What the graph of a value looks like on this worker, down to what it received: the names, each node once.
void collect(const ferry::graph_edge& from, std::vector<const ferry::graph_node*>& seen, edges& names) {
  if (!from || std::find(seen.begin(), seen.end(), from.to.get()) != seen.end()) return;
  seen.push_back(from.to.get());
  names.emplace_back(from.to->name());
  for (const auto& next : from.to->edges()) collect(next, seen, names);
}
edges graph_of(const tensor& t) {
  std::vector<const ferry::graph_node*> seen;
  edges names;
  collect(ferry::gradient_edge(t), seen, names);
  return names;
}

// The sum of the arguments, and what the graph of it is at this worker.
std::pair<tensor, edges> add_and_look(const tensor& a, const tensor& b) {
  tensor sum = a + b;
  edges graph = graph_of(sum);
  return {std::move(sum), std::move(graph)};
}
tensor nested_add(const tensor& a, const tensor& b, const std::string& next) {
  return ferry::rpc_sync<add>(next, a, b);
}
tensor remote_nested_add(const tensor& a, const tensor& b, const std::string& next) {
  return ferry::remote<add>(next, a, b).to_here();
}
tensor sum_all(const std::vector<tensor>& all) {
  tensor whole = all[0] * 1.0;
  for (std::size_t i = 1; i != all.size(); ++i) whole = whole + all[i];
  return whole;
}
std::vector<bool> flags(const std::vector<tensor>& all) {
  std::vector<bool> result;
  for (const tensor& each : all) result.push_back(each.requires_grad());
  return result;
}
tensor no_gradient() { return ferry::tensor_of({1., 2.}); }

TEST_CASE("[row 236] one call: the graphs of caller and callee") {
  cluster group(2);
  dist::context_id id;
  {
    const tensor a = leaf({1, 2, 3});
    const tensor b = leaf({4, 5, 6});
    const dist::context context(group[0]);
    id = context.id();
    const auto [sum, graph] = group[0].rpc_sync<add_and_look>("worker1", a, b);
    // The callee: one node has received both arguments.
    CHECK(graph == edges{"add", "receive"});
    const dist::context_info there = dist::inspect(id, group[1]);
    REQUIRE(there.receives.size() == 1);
    CHECK(there.receives[0].from == ferry::worker_id{0});
    CHECK(there.receives[0].tensors == 2);
    REQUIRE(there.sends.size() == 1);
    CHECK(there.sends[0].to == ferry::worker_id{0});
    CHECK(kinds(there.sends[0]) == edges{"add"});
    CHECK(ids(there.known_workers) == std::vector<int>{0});
    // The caller: what was sent leads to both leaves, and the result was received.
    const dist::context_info here = dist::inspect(id, group[0]);
    REQUIRE(here.sends.size() == 1);
    CHECK(here.sends[0].message == there.receives[0].message);
    CHECK(kinds(here.sends[0]).size() == 2);
    CHECK(here.sends[0].edges[0] == ferry::gradient_edge(a).to->describe());
    CHECK(here.sends[0].edges[1] == ferry::gradient_edge(b).to->describe());
    REQUIRE(here.receives.size() == 1);
    CHECK(here.receives[0].message == there.sends[0].message);
    CHECK(here.receives[0].tensors == 1);
    CHECK(graph_of(sum) == edges{"receive"});
    CHECK(ids(here.known_workers) == std::vector<int>{1});
    CHECK_FALSE(here.pass_runs);
    expect_error(errc::invalid_argument, "a pass on one worker ends here",
                 [&, &whole = sum] { ferry::backward(ferry::sum(whole)); });
  }
  CHECK_FALSE(dist::exists(id, group[0]));
  await([&] { return !dist::exists(id, group[1]); });
}

TEST_CASE("[row 236] a call that makes a remote object: its graph is at the owner, the fetched value's at both") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const auto there = group[0].remote<add>("worker1", a, b);
  const tensor sum = there.to_here();
  CHECK(graph_of(sum) == edges{"receive"});
  const dist::context_info here = dist::inspect(context.id(), group[0]);
  REQUIRE(here.sends.size() == 1);
  CHECK(here.sends[0].edges.size() == 2);
  CHECK(here.receives.size() == 1);
  const dist::context_info owner = dist::inspect(context.id(), group[1]);
  CHECK(owner.receives.size() == 1);
  REQUIRE(owner.sends.size() == 1);
  CHECK(kinds(owner.sends[0]) == edges{"add"});
  // Fetched again: another message.
  (void)there.to_here();
  CHECK(dist::inspect(context.id(), group[1]).sends.size() == 2);
}

TEST_CASE("[row 237] nested calls: the graphs of four workers' contexts") {
  cluster group(4);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  tensor result;
  SUBCASE("called") { result = group[0].rpc_sync<nested_add>("worker1", a, b, "worker2"); }
  SUBCASE("remote") { result = group[0].rpc_sync<remote_nested_add>("worker1", a, b, "worker2"); }
  CHECK(numbers(result) == vec{5, 7, 9});
  const dist::context_info first = dist::inspect(context.id(), group[0]);
  const dist::context_info second = dist::inspect(context.id(), group[1]);
  const dist::context_info third = dist::inspect(context.id(), group[2]);
  CHECK_FALSE(dist::exists(context.id(), group[3]));
  REQUIRE(first.sends.size() == 1);
  REQUIRE(first.receives.size() == 1);
  REQUIRE(second.sends.size() == 2);
  REQUIRE(second.receives.size() == 2);
  REQUIRE(third.sends.size() == 1);
  REQUIRE(third.receives.size() == 1);
  // worker1: received both from worker0, sent both to worker2, received one, sent one.
  CHECK(second.sends[0].to == ferry::worker_id{2});
  CHECK(kinds(second.sends[0]) == edges{"receive", "receive"});
  CHECK(second.sends[1].to == ferry::worker_id{0});
  CHECK(kinds(second.sends[1]) == edges{"receive"});
  CHECK(second.receives[0].message == first.sends[0].message);
  CHECK(second.receives[0].tensors == 2);
  CHECK(second.receives[1].message == third.sends[0].message);
  CHECK(second.receives[1].tensors == 1);
  CHECK(third.receives[0].message == second.sends[0].message);
  CHECK(kinds(third.sends[0]) == edges{"add"});
  CHECK(first.receives[0].message == second.sends[1].message);
  CHECK(ids(first.known_workers) == std::vector<int>{1});
  CHECK(ids(second.known_workers) == std::vector<int>{0, 2});
  CHECK(ids(third.known_workers) == std::vector<int>{1});
}

TEST_CASE("[row 238] a nested call back to the first worker, and calls to oneself") {
  cluster group(2);
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  {
    const dist::context context(group[0]);
    const tensor result = group[0].rpc_sync<nested_add>("worker1", a, b, "worker0");
    const dist::context_info here = dist::inspect(context.id(), group[0]);
    REQUIRE(here.sends.size() == 2);
    REQUIRE(here.receives.size() == 2);
    CHECK(here.sends[0].to == ferry::worker_id{1});
    CHECK(here.sends[0].edges.size() == 2);
    CHECK(here.sends[1].to == ferry::worker_id{1});
    CHECK(kinds(here.sends[1]) == edges{"add"});
    CHECK(graph_of(result) == edges{"receive"});
    CHECK(ids(here.known_workers) == std::vector<int>{1});
  }
  const dist::context context(group[0]);
  (void)group[0].rpc_sync<add>("worker0", a, b);
  const dist::context_info here = dist::inspect(context.id(), group[0]);
  CHECK(here.sends.size() == 2);
  CHECK(here.receives.size() == 2);
  CHECK(ids(here.known_workers) == std::vector<int>{0});
}

TEST_CASE("[row 241] a list of tensors, some with gradients: edges in order, and the worker is known") {
  cluster group(2);
  std::vector<tensor> all;
  for (int i = 0; i != 10; ++i) {
    all.push_back(ferry::full({3}, i, ferry::dtype::f64));
    if (i % 2 == 0) ferry::require_grad(all.back());
  }
  const dist::context context(group[0]);
  tensor sum;
  SUBCASE("called") { sum = group[0].rpc_sync<sum_all>("worker1", all); }
  SUBCASE("remote") { sum = group[0].remote<sum_all>("worker1", all).to_here(); }
  const dist::context_info here = dist::inspect(context.id(), group[0]);
  REQUIRE(here.sends.size() == 1);
  REQUIRE(here.sends[0].edges.size() == 5);
  for (std::size_t i = 0; i != 5; ++i) CHECK(here.sends[0].edges[i] == ferry::gradient_edge(all[2 * i]).to->describe());
  CHECK(ids(here.known_workers) == std::vector<int>{1});
  context.backward(ferry::sum(sum));
  const dist::gradient_map found = context.gradients();
  CHECK(found.size() == 5);
  for (std::size_t i = 0; i != 10; ++i) CHECK(found.contains(all[i]) == (i % 2 == 0));
}

TEST_CASE("[row 245] workers are known whether tensors with gradients went there or not") {
  cluster group(4);
  const tensor with = leaf({1, 2});
  const tensor without = ferry::tensor_of({1., 2.});
  const dist::context context(group[0]);
  (void)group[0].rpc_sync<add>("worker1", without, without);
  CHECK(ids(dist::inspect(context.id(), group[0]).known_workers) == std::vector<int>{1});
  CHECK(dist::inspect(context.id(), group[0]).sends.empty());
  (void)group[0].rpc_sync<add>("worker2", with, without);
  (void)group[0].remote<no_gradient>("worker3").to_here();
  const dist::context_info here = dist::inspect(context.id(), group[0]);
  CHECK(ids(here.known_workers) == std::vector<int>{1, 2, 3});
  CHECK(here.sends.size() == 1);
}

TEST_CASE("[row 269] handlers see which arguments require gradients; those of the caller stay as they are") {
  cluster group(2);
  std::vector<tensor> all;
  for (int i = 0; i != 6; ++i) {
    all.push_back(ferry::full({2}, i, ferry::dtype::f64));
    if (i % 3 == 0) ferry::require_grad(all.back());
  }
  const dist::context context(group[0]);
  const std::vector<bool> expected{true, false, false, true, false, false};
  CHECK(group[0].rpc_sync<flags>("worker1", all) == expected);
  CHECK(flags(all) == expected);
  context.backward(ferry::sum(group[0].rpc_sync<sum_all>("worker1", all)));
  CHECK(context.gradients().size() == 2);
  CHECK(numbers(context.gradients()[all[3]]) == vec{1, 1});
  CHECK(flags(all) == expected);
}

TEST_CASE("[row 289] gradients of a message go to both leaves; one that is missing counts as zero, and is not sent") {
  cluster group(2);
  const tensor a = leaf({1, 2});
  const tensor b = leaf({3, 4});
  const dist::context context(group[0]);
  const tensor sum = group[0].rpc_sync<add>("worker1", a, b);
  context.backward(sum, {.gradients = {ferry::tensor_of({5., 6.})}});
  CHECK(numbers(context.gradients().at(a)) == vec{5, 6});
  CHECK(numbers(context.gradients().at(b)) == vec{5, 6});
}

}  // namespace graph_test

// libtorch's graph behind the seam of distributed passes: against libtorch's own engine.

#include <ferry/adapters/libtorch/engine.hpp>

#include "torch.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "expect_error.hpp"
#include "seam_pass.hpp"

namespace engine_test {

using ferry::errc;
using ferry::tensor;
using namespace libtorch_test;

namespace {

static_assert(ferry::autograd_engine<ferry::libtorch_engine>);

ferry::held_edge edge_of(const at::Tensor& t) { return ferry::gradient_edge_of(ferry::from_torch(t)); }

at::Tensor sum_of(const leaf_sums& sums, const at::Tensor& leaf) {
  const auto found = sums.find(reinterpret_cast<std::uintptr_t>(leaf.unsafeGetTensorImpl()));
  if (found == sums.end()) return {};
  const ferry::dist_autograd::leaf_gradient whole{found->second.leaf.value, found->second.sum.dense,
                                                  found->second.sum.rows};
  CHECK(ferry::torch_leaf(whole).is_same(leaf));
  return ferry::torch_value(whole);
}

leaf_sums pass(const at::Tensor& loss, bool keeps_graph = false, leaf_sums into = {}) {
  const ferry::held_edge edge = edge_of(loss);
  REQUIRE(static_cast<bool>(edge));
  seam_pass(keeps_graph).run({{edge.edge, ferry::from_torch(at::ones_like(loss).detach())}}, into);
  return into;
}

// The gradients of `loss` for `leaves`, by this engine and by libtorch's, are equal. Twice, for they add up.
void check_equal(const at::Tensor& loss, const std::vector<at::Tensor>& leaves) {
  leaf_sums sums = pass(loss, true);
  sums = pass(loss, true, std::move(sums));
  for (const at::Tensor& each : leaves) CHECK_FALSE(each.grad().defined());
  const std::vector<at::Tensor> expected = torch::autograd::grad({loss}, leaves, {}, true, false, true);
  for (std::size_t i = 0; i != leaves.size(); ++i) {
    CAPTURE(i);
    const at::Tensor found = sum_of(sums, leaves[i]);
    REQUIRE(found.defined() == expected[i].defined());
    if (!found.defined()) continue;
    CHECK(at::allclose(found.to_dense() / 2, expected[i].to_dense(), 1e-5, 1e-6));
  }
  std::vector<const void*> buffers;
  for (const auto& [identity, each] : sums) {
    if (each.sum.dense.defined()) buffers.push_back(each.sum.dense.storage().data());
  }
  std::sort(buffers.begin(), buffers.end());
  CHECK(std::adjacent_find(buffers.begin(), buffers.end()) == buffers.end());  // two leaves never share one
}

at::Tensor leaf(at::IntArrayRef shape) { return at::rand(shape).requires_grad_(); }

struct doubled : torch::autograd::Function<doubled> {
  static at::Tensor forward(torch::autograd::AutogradContext* keep, const at::Tensor& x) {
    keep->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* kept,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * kept->get_saved_variables()[0] * 2};
  }
};

// Gives both inputs one new tensor, and keeps it.
struct twins : torch::autograd::Function<twins> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x, const at::Tensor& y) {
    return x + y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    last = gradients[0] * 2;
    return {last, last};
  }
  static inline at::Tensor last;
};

struct failing : torch::autograd::Function<failing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::domain_error("not here");
  }
};

// Counts what a post hook of a node sees.
struct counting_hook : torch::autograd::FunctionPostHook {
  explicit counting_hook(std::vector<double>* seen) : seen_(seen) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override {
    seen_->push_back(inputs.at(0).sum().item<double>());
    return outputs;
  }
  std::vector<double>* seen_;
};

}  // namespace

TEST_CASE("libtorch's formulas give the gradients that libtorch's engine gives") {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4});
  const at::Tensor c = leaf({4});
  check_equal((a + b).sum(), {a, b, c});
  check_equal((a * b + c).sum(), {a, b, c});
  check_equal((a.matmul(b.t()) * c.sum()).exp().mean(), {a, b, c});
  check_equal(((a * a).sigmoid() + a).pow(2).sum(), {a});
  check_equal(at::cat({a, b, a}).slice(0, 1, 7).select(1, 2).sum(), {a, b});
  check_equal(std::get<0>(a.sort(1)).select(1, 0).sum(), {a, b});
  const auto parts = (a * b).chunk(2, 1);  // one part is not used
  check_equal(parts[0].sum(), {a, b});
  check_equal(at::stack({a.expand({2, 3, 4}).sum(0), b}).sum(), {a, b});
  check_equal(a.sum(), {a});  // from a node straight to a leaf, by an expanded gradient
  const at::Tensor z = at::complex(a, b);
  check_equal(at::abs(z.conj()).sum(), {a, b});
  check_equal((a.to(at::kDouble) * 3).sum(), {a});
  check_equal(doubled::apply(a * b).sum(), {a, b});
}

TEST_CASE("writes in place and views are part of the graph") {
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({4});
  at::Tensor y = a * 2;
  y.select(0, 1).mul_(b);
  y.add_(1);
  check_equal(y.pow(2).sum(), {a, b});
}

TEST_CASE("modules of torch::nn give the gradients that libtorch's engine gives") {
  torch::manual_seed(3);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)), torch::nn::BatchNorm2d(4),
                              torch::nn::ReLU(), torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                              torch::nn::Linear(36, 5));
  check_equal(torch::cross_entropy_loss(model->forward(at::rand({8, 1, 8, 8})), at::arange(8) % 5),
              model->parameters());
  torch::nn::LSTM recurrent(torch::nn::LSTMOptions(3, 4).num_layers(2));
  check_equal(std::get<0>(recurrent->forward(at::rand({5, 2, 3}))).sum(), recurrent->parameters());
  torch::nn::TransformerEncoderLayer layer(torch::nn::TransformerEncoderLayerOptions(8, 2).dropout(0));
  check_equal(layer->forward(at::rand({4, 2, 8})).pow(2).sum(), layer->parameters());
}

TEST_CASE("gradients of tables stay rows where the table is a leaf") {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 3).sparse(true));
  const at::Tensor chosen = at::tensor({7, 2, 7}, at::kLong);
  check_equal((table->forward(chosen) * at::arange(3)).sum(), {table->weight});
  const leaf_sums sums = pass(table->forward(chosen).sum());
  REQUIRE(sums.size() == 1);
  CHECK(sums.begin()->second.sum.rows.nnz() == 3);
  CHECK(sum_of(sums, table->weight).is_sparse());
  // A hook sees the whole; a table that was computed has a dense gradient.
  int seen = 0;
  const unsigned hook = table->weight.register_hook([&](const at::Tensor& gradient) {
    ++seen;
    CHECK_FALSE(gradient.is_sparse());
  });
  CHECK(pass(table->forward(chosen).sum()).begin()->second.sum.dense.defined());
  CHECK(seen == 1);
  table->weight.remove_hook(hook);
  check_equal(at::embedding(table->weight * 1, chosen, -1, false, true).sum(), {table->weight});
}

TEST_CASE("a hook sees the whole gradient of its tensor, once, and may replace it") {
  const at::Tensor a = leaf({2});
  const at::Tensor inner = a * 3;
  std::vector<double> seen;
  inner.register_hook([&](const at::Tensor& gradient) {
    seen.push_back(gradient.sum().item<double>());
    return gradient * 10;
  });
  std::vector<double> of_leaf;
  a.register_hook([&](const at::Tensor& gradient) {
    of_leaf.push_back(gradient.sum().item<double>());
    return gradient + 1;
  });
  const at::Tensor loss = (inner + inner * 2 + inner * 4).sum();
  const leaf_sums sums = pass(loss);
  CHECK(seen == std::vector<double>{14});
  CHECK(of_leaf == std::vector<double>{420});
  CHECK(at::allclose(sum_of(sums, a), at::full({2}, 211.)));
}

TEST_CASE("hooks of nodes run, retained gradients are kept") {
  const at::Tensor a = leaf({2});
  at::Tensor inner = a * 3;
  inner.retain_grad();
  std::vector<double> of_node;
  std::vector<double> of_leaf;
  inner.grad_fn()->add_post_hook(std::make_unique<counting_hook>(&of_node));
  const auto accumulator = torch::autograd::impl::grad_accumulator(a);
  accumulator->add_post_hook(std::make_unique<counting_hook>(&of_leaf));
  const leaf_sums sums = pass((inner * 2).sum());
  CHECK(of_node == std::vector<double>{4});
  CHECK(of_leaf == std::vector<double>{12});
  CHECK(at::allclose(inner.grad(), at::full({2}, 2.)));
  CHECK(at::allclose(sum_of(sums, a), at::full({2}, 6.)));
}

TEST_CASE("a gradient that a hook keeps is not written by later passes") {
  const at::Tensor a = leaf({2});
  at::Tensor kept;
  a.register_hook([&](const at::Tensor& gradient) { kept = gradient; });
  const at::Tensor loss = (a * 5).sum();
  leaf_sums sums = pass(loss, true);
  const at::Tensor first = kept;
  sums = pass(loss, true, std::move(sums));
  CHECK(at::allclose(first, at::full({2}, 5.)));
  CHECK(at::allclose(sum_of(sums, a), at::full({2}, 10.)));
}

TEST_CASE("a gradient that a formula gives twice, and keeps, is written for none of its takers") {
  const at::Tensor a = leaf({2});
  const at::Tensor b = leaf({2});
  const at::Tensor loss = twins::apply(a, b).sum();
  leaf_sums sums = pass(loss, true);
  const at::Tensor first = twins::last;
  sums = pass(loss, true, std::move(sums));
  CHECK(at::allclose(first, at::full({2}, 2.)));
  CHECK(at::allclose(sum_of(sums, a), at::full({2}, 4.)));
  CHECK(at::allclose(sum_of(sums, b), at::full({2}, 4.)));
}

TEST_CASE("formulas run outside of the graph") {
  const at::Tensor a = leaf({2});
  at::Tensor seen;
  const at::Tensor inner = a * a;
  inner.register_hook([&](const at::Tensor& gradient) { seen = gradient * a; });
  (void)pass((inner * 2).sum());
  CHECK(seen.defined());
  CHECK_FALSE(seen.requires_grad());
  CHECK(at::GradMode::is_enabled());
}

TEST_CASE("a graph is released unless it is kept") {
  const at::Tensor a = leaf({2});
  const at::Tensor loss = (a * a).sum();
  (void)pass(loss, true);
  (void)pass(loss);
  CHECK_THROWS_WITH(pass(loss), doctest::Contains("backward through the graph a second time"));
}

TEST_CASE("what a formula throws leaves the pass") {
  const at::Tensor a = leaf({2});
  CHECK_THROWS_WITH_AS((void)pass(failing::apply(a * 2).sum()), "not here", std::domain_error);
}

TEST_CASE("without a graph there is no edge") {
  const at::Tensor a = leaf({2});
  CHECK(static_cast<bool>(edge_of(a)));
  CHECK_FALSE(static_cast<bool>(edge_of(a.detach())));
  const at::NoGradGuard none;
  CHECK_FALSE(static_cast<bool>(edge_of(a)));
}

TEST_CASE("a tensor of another graph leads out of libtorch's") {
  const at::Tensor start = leaf({3});
  // There and back: the gradient passes ferry's tensor.
  const at::Tensor arrived = ferry::to_torch(ferry::from_torch(start * 2));
  CHECK(arrived.requires_grad());
  CHECK(arrived.grad_fn()->name() == "ferry");
  const leaf_sums sums = pass((arrived * arrived).sum(), true);
  CHECK(at::allclose(sum_of(sums, start), start * 8));
  int seen = 0;
  arrived.register_hook([&](const at::Tensor& gradient) {
    ++seen;
    return gradient * 2;
  });
  CHECK(at::allclose(sum_of(pass((arrived * arrived).sum(), true), start), start * 16));
  CHECK(seen == 1);
  // libtorch's own pass says that it cannot.
  CHECK_THROWS_WITH((arrived * 2).sum().backward(), doctest::Contains("ferry::dist_autograd::backward(context"));
}

TEST_CASE("nodes describe themselves") {
  const at::Tensor a = leaf({2, 3});
  const ferry::held_edge inner = edge_of(a * 2);
  const std::string text = inner.edge.to.engine().describe(inner.edge.to.node());
  CHECK(text.starts_with("MulBackward1 (node "));
  CHECK(text.ends_with("of libtorch, Float)"));
  const ferry::held_edge end = edge_of(a);
  CHECK(end.edge.to.engine().describe(end.edge.to.node()) ==
        "torch::autograd::AccumulateGrad (leaf of libtorch, [2, 3], Float)");
  CHECK(end.edge.to.engine().name() == "libtorch");
}

}  // namespace engine_test

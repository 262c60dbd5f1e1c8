// Distributed passes through libtorch's graphs: against the same computation by libtorch alone, on one worker.

#include <ferry/adapters/libtorch.hpp>

#include "torch.hpp"

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim/distributed_clip.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "gate.hpp"
#include "processes.hpp"

namespace libtorch_dist_test {

using ferry::errc;
using ferry::rref;
using ferry::tensor;
using ferry_test::cluster;

}  // namespace libtorch_dist_test
namespace dist = ferry::dist_autograd;

namespace libtorch_dist_test {

at::Tensor product(const at::Tensor& a, const at::Tensor& b) { return a * b; }
at::Tensor tanh_product(const at::Tensor& a, const at::Tensor& b) { return a.matmul(b).tanh(); }
// Of ferry's graph.
tensor squared(const tensor& t) { return t * t; }
// Worker `next` multiplies, this one adds; of two results one is not used.
at::Tensor add_product(const at::Tensor& a, const at::Tensor& b, const std::string& next) {
  const at::Tensor unused = ferry::rpc_sync<product>(next, a, a);
  return a + ferry::rpc_sync<product>(next, a, b);
}
at::Tensor through_ferry(const at::Tensor& a) {
  return ferry::to_torch(ferry::rpc_sync<squared>("worker0", ferry::from_torch(a * 3)));
}
std::pair<at::Tensor, at::Tensor> both(const at::Tensor& a) { return {a * 2, a * 3}; }

std::vector<double> seen;
at::Tensor with_hook(const at::Tensor& a) {
  a.register_hook([](const at::Tensor& gradient) { seen.push_back(gradient.sum().item<double>()); });
  return a + a * 2 + a * 4;
}

struct failing : torch::autograd::Function<failing> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    throw std::domain_error("the formula of failing");
  }
};
at::Tensor fail_later(const at::Tensor& a) { return failing::apply(a * 2); }
bool defined_gradient(const at::Tensor& t) { return t.requires_grad(); }

struct half_impl : torch::nn::Module {
  half_impl(int in, int out) : layer(register_module("layer", torch::nn::Linear(in, out))) {}
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x).tanh(); }
  torch::nn::Linear layer;
};
std::vector<at::Tensor> parameters_of(const half_impl& m) { return m.parameters(); }
void set_parameters(half_impl& m, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard outside;
  std::vector<at::Tensor> own = m.parameters();
  for (std::size_t i = 0; i != own.size(); ++i) own[i].copy_(values.at(i));
}
at::Tensor bias_of(half_impl& m) { return m.layer->bias; }
struct table_impl : torch::nn::Module {
  table_impl() : rows(register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 4).sparse(true)))) {}
  at::Tensor forward(const at::Tensor& chosen) { return rows->forward(chosen); }
  torch::nn::Embedding rows;
};
std::vector<std::int64_t> sparse_rows(table_impl& m, dist::context_id in) {
  const at::Tensor gradient = ferry::torch_gradient(dist::get_gradients(in), m.rows->weight);
  if (!gradient.defined() || !gradient.is_sparse()) return {};
  const at::Tensor rows = gradient.coalesce().indices().flatten();
  return {rows.data_ptr<std::int64_t>(), rows.data_ptr<std::int64_t>() + rows.numel()};
}

namespace {

const ferry_test::role member("libtorch dist member", [](const std::vector<std::string>& arguments) {
  ferry::worker self = ferry::init_rpc({.name = "worker1", .rank = 1, .world_size = 2, .init_method = arguments.at(0)});
  self.shutdown();
  return 0;
});

at::Tensor leaf(at::IntArrayRef shape) { return at::rand(shape, at::kDouble).requires_grad_(); }

void backward(const dist::context& in, const at::Tensor& loss, const dist::backward_options& options = {}) {
  dist::backward(in, ferry::from_torch(loss), options);
}
void check_gradients(const dist::context& in, const std::vector<at::Tensor>& leaves, const at::Tensor& same_locally) {
  const std::vector<at::Tensor> expected = torch::autograd::grad({same_locally}, leaves);
  const dist::gradient_map found = in.gradients();
  for (std::size_t i = 0; i != leaves.size(); ++i) {
    const at::Tensor gradient = ferry::torch_gradient(found, leaves[i]);
    REQUIRE(gradient.defined());
    CHECK(at::allclose(gradient, expected[i]));
    CHECK_FALSE(leaves[i].grad().defined());
  }
}

}  // namespace

TEST_CASE("gradients of libtorch go back through calls") {
  cluster group(2);
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({4, 5});
  for (const dist::backward_mode mode : {dist::backward_mode::smart, dist::backward_mode::fast}) {
    const dist::context context(group[0]);
    const at::Tensor c = group[0].rpc_sync<tanh_product>("worker1", a, b);
    REQUIRE(c.requires_grad());
    REQUIRE_FALSE(c.is_leaf());
    backward(context, (c * c).sum(), {.mode = mode});
    const at::Tensor local = tanh_product(a, b);
    check_gradients(context, {a, b}, (local * local).sum());
    CHECK(ferry::torch_gradients(context.gradients()).size() == 2);
  }
}

TEST_CASE("gradients of libtorch go back through nested calls, calls to oneself, and beside results without use") {
  cluster group(3);
  for (const char* next : {"worker2", "worker1", "worker0"}) {
    const at::Tensor a = leaf({3});
    const at::Tensor b = leaf({3});
    const dist::context context(group[0]);
    const at::Tensor c = group[0].rpc_sync<add_product>("worker1", a, b, next);
    const auto [twice, thrice] = group[0].rpc_sync<both>("worker0", c);
    backward(context, (twice * a).sum(), {.retain_graph = true});
    const at::Tensor local = ((a + a * b) * 2 * a).sum();
    check_gradients(context, {a, b}, local);
    backward(context, (twice * a).sum());
    const dist::gradient_map found = context.gradients();
    CHECK(at::allclose(ferry::torch_gradient(found, b), a * a * 4));  // passes of a context add up
  }
}

TEST_CASE("graphs of ferry and libtorch meet in one pass") {
  cluster group(2);
  const at::Tensor a = leaf({3});
  const tensor own = ferry::require_grad(ferry::tensor_of({1., 2., 3.}));
  const dist::context context(group[0]);
  const at::Tensor b = group[0].rpc_sync<through_ferry>("worker1", a);
  const tensor loss = ferry::sum(ferry::from_torch(b) * own);
  context.backward(loss);
  CHECK(at::allclose(ferry::torch_gradient(context.gradients(), a), a * 18 * ferry::to_torch(ferry::detach(own))));
  CHECK(at::allclose(ferry::to_torch(context.gradients().at(own)), a * a * 9));
  CHECK(ferry::torch_gradients(context.gradients()).size() == 1);
}

TEST_CASE("a hook on a tensor that has arrived sees its whole gradient, once") {
  cluster group(2);
  seen.clear();
  const at::Tensor a = leaf({2});
  const dist::context context(group[0]);
  backward(context, group[0].rpc_sync<with_hook>("worker1", a).sum());
  CHECK(seen == std::vector<double>{14});
}

TEST_CASE("a formula of libtorch that fails ends the pass, and the context can be used again") {
  cluster group(2);
  const at::Tensor a = leaf({2});
  const dist::context context(group[0]);
  const at::Tensor bad = group[0].rpc_sync<fail_later>("worker1", a);
  expect_error(errc::remote_exception, "the formula of failing", [&] { backward(context, bad.sum()); });
  backward(context, group[0].rpc_sync<product>("worker1", a, a).sum());
  CHECK(at::allclose(ferry::torch_gradient(context.gradients(), a), a * 2));
}

TEST_CASE("libtorch's own pass ends where a tensor came with a call, in words") {
  cluster group(2);
  const at::Tensor a = leaf({2});
  const dist::context context(group[0]);
  const at::Tensor c = group[0].rpc_sync<product>("worker1", a, a);
  CHECK_THROWS_WITH(c.sum().backward(), doctest::Contains("ferry::dist_autograd::backward"));
}

TEST_CASE("tensors of other types travel, but lead no gradients") {
  cluster group(2);
  const at::Tensor half = at::rand({2}).to(at::kBFloat16).requires_grad_();
  CHECK_FALSE(group[0].rpc_sync<defined_gradient>("worker1", half));
  const at::Tensor a = leaf({2});
  CHECK_FALSE(group[0].rpc_sync<defined_gradient>("worker1", a));  // outside of a context
  const dist::context context(group[0]);
  CHECK(group[0].rpc_sync<defined_gradient>("worker1", a));
  CHECK_FALSE(group[0].rpc_sync<defined_gradient>("worker1", a.detach()));
  expect_error(errc::bad_dtype, "are of f32 or f64", [&] { (void)group[0].rpc_sync<product>("worker1", half, half); });
  const at::NoGradGuard outside;
  CHECK_FALSE(group[0].rpc_sync<defined_gradient>("worker1", half));
}

TEST_CASE("modules of torch::nn are objects behind references") {
  cluster group(2);
  const at::Tensor x = at::rand({3, 4});
  const rref<half_impl> there = group[0].remote<ferry::make<half_impl>>("worker1", 4, 5);
  half_impl same(4, 5);
  set_parameters(same, there.rpc_sync<&parameters_of>());
  const at::Tensor y = there.rpc_sync<&half_impl::forward>(x);
  CHECK(at::allclose(y, same.forward(x)));
  const std::vector<rref<tensor>> parameters = ferry::torch_parameters(there);
  REQUIRE(parameters.size() == 2);
  CHECK(parameters[0].owner_name() == "worker1");
  CHECK(at::allclose(ferry::to_torch(ferry::detach(parameters[0].to_here())), same.layer->weight));
}

TEST_CASE("gradients of tables of another worker are rows") {
  cluster group(2);
  const rref<table_impl> there = group[0].remote<ferry::make<table_impl>>("worker1");
  const dist::context context(group[0]);
  const at::Tensor y = there.rpc_sync<&table_impl::forward>(at::tensor({7, 2, 7}, at::kLong));
  backward(context, y.sum());
  CHECK(there.rpc_sync<&sparse_rows>(context.id()) == std::vector<std::int64_t>{2, 7});
}

namespace {

// A model of two halves, one of them at worker1, and the same one of libtorch alone.
struct two_halves {
  explicit two_halves(ferry::worker& self) : here(self), remote(self.remote<ferry::make<half_impl>>("worker1", 4, 5)) {
    set_parameters(*first, remote.rpc_sync<&parameters_of>());
    const at::NoGradGuard outside;
    for (std::size_t i = 0; i != 2; ++i) second->parameters()[i].copy_(own->parameters()[i]);
  }
  std::vector<rref<tensor>> parameters() {
    std::vector<rref<tensor>> all = ferry::torch_parameters(remote);
    for (const at::Tensor& each : own->parameters()) all.push_back(here.make_rref(ferry::from_torch(each)));
    return all;
  }
  std::vector<at::Tensor> local_parameters() {
    std::vector<at::Tensor> all = first->parameters();
    for (const at::Tensor& each : second->parameters()) all.push_back(each);
    return all;
  }
  at::Tensor loss(const at::Tensor& x) { return own->forward(remote.rpc_sync<&half_impl::forward>(x)).pow(2).mean(); }
  at::Tensor local_loss(const at::Tensor& x) { return second->forward(first->forward(x)).pow(2).mean(); }
  void check_equal() {
    std::vector<at::Tensor> all = remote.rpc_sync<&parameters_of>();
    for (const at::Tensor& each : own->parameters()) all.push_back(each);
    const std::vector<at::Tensor> expected = local_parameters();
    for (std::size_t i = 0; i != all.size(); ++i) CHECK(at::allclose(all[i], expected[i], 1e-4, 1e-6));
  }

  ferry::worker& here;
  rref<half_impl> remote;
  std::shared_ptr<half_impl> own = std::make_shared<half_impl>(5, 2);
  std::shared_ptr<half_impl> first = std::make_shared<half_impl>(4, 5);
  std::shared_ptr<half_impl> second = std::make_shared<half_impl>(5, 2);
};

template <class Optimizer, class Options>
void train(ferry::worker& self, const Options& with, bool within_the_pass) {
  torch::manual_seed(11);
  two_halves model(self);
  Optimizer local(model.local_parameters(), with);
  ferry::distributed_torch_optimizer<Optimizer> optimizer(model.parameters(), with);
  for (int i = 0; i != 5; ++i) {
    const at::Tensor x = at::rand({6, 4});
    if (i == 3) {
      optimizer.set_lr(0.01);
      local.param_groups()[0].options().set_lr(0.01);
    }
    {
      const dist::context context(self);
      if (within_the_pass) {
        backward(context, model.loss(x), {.then = optimizer});
      } else {
        backward(context, model.loss(x));
        optimizer.step(context);
      }
    }
    local.zero_grad();
    model.local_loss(x).backward();
    local.step();
    model.check_equal();
    for (const at::Tensor& each : model.own->parameters()) CHECK_FALSE(each.grad().defined());
  }
}

}  // namespace

TEST_CASE("optimizers of torch::optim make the steps over two workers that they make over one") {
  cluster group(2);
  for (const bool within_the_pass : {false, true}) {
    CAPTURE(within_the_pass);
    train<torch::optim::SGD>(group[0], torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01), within_the_pass);
    train<torch::optim::Adam>(group[0], torch::optim::AdamOptions(0.05), within_the_pass);
    train<torch::optim::AdamW>(group[0], torch::optim::AdamWOptions(0.05), within_the_pass);
    train<torch::optim::Adagrad>(group[0], torch::optim::AdagradOptions(0.05), within_the_pass);
    train<torch::optim::RMSprop>(group[0], torch::optim::RMSpropOptions(0.05), within_the_pass);
  }
}

TEST_CASE("what optimizers of torch::optim keep goes to other owners") {
  cluster group(2);
  using optimizer_type = ferry::distributed_torch_optimizer<torch::optim::SGD>;
  const auto with = torch::optim::SGDOptions(0.1).momentum(0.9);
  const at::Tensor x = at::rand({3, 2});
  const rref<half_impl> there = group[0].remote<ferry::make<half_impl>>("worker1", 2, 2);
  optimizer_type first(ferry::torch_parameters(there), with);
  const auto step_there = [&] {
    const dist::context pass(group[0]);
    backward(pass, there.rpc_sync<&half_impl::forward>(x).sum());
    first.step(pass);
  };
  step_there();
  step_there();
  // The same parameters at two owners.
  half_impl here(2, 2);
  const rref<half_impl> rest = group[0].remote<ferry::make<half_impl>>("worker1", 2, 2);
  const std::vector<at::Tensor> now = there.rpc_sync<&parameters_of>();
  set_parameters(here, now);
  rest.rpc_sync<&set_parameters>(now);
  std::vector<rref<tensor>> mixed = ferry::torch_parameters(rest);
  mixed[0] = group[0].make_rref(ferry::from_torch(here.layer->weight));
  optimizer_type second(mixed, with);
  const std::string saved = first.save();
  second.load(saved);
  step_there();
  {
    const dist::context pass(group[0]);
    const at::Tensor bias = rest.rpc_sync<&bias_of>();
    backward(pass, at::linear(x, here.layer->weight, bias).tanh().sum());
    second.step(pass);
  }
  const std::vector<at::Tensor> expected = there.rpc_sync<&parameters_of>();
  CHECK(at::allclose(here.layer->weight, expected[0]));
  CHECK(at::allclose(rest.rpc_sync<&parameters_of>()[1], expected[1]));
  CHECK_FALSE(at::allclose(expected[0], now[0]));
  expect_error(errc::invalid_argument, "the checkpoint is of 2 parameters, and there are 1",
               [&] { optimizer_type({mixed[0]}, with).load(saved); });
  expect_error(errc::truncated, "", [&] { second.load(saved.substr(0, saved.size() - 1)); });
  expect_error(errc::malformed, "no checkpoint", [&] {
    std::string other = saved;
    other[other.find("ferry torch")] = 'F';
    second.load(other);
  });
}

struct listed_module : torch::nn::Module {
  listed_module() : layer(register_module("layer", torch::nn::Linear(2, 2))) {}
  torch::nn::Linear layer;
};

namespace {

// A step that the test holds up.
std::unique_ptr<ferry_test::gate> step_gate;
struct slow_sgd : torch::optim::SGD {
  slow_sgd(std::vector<at::Tensor> parameters, const torch::optim::SGDOptions& with)
      : SGD(std::move(parameters), with) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    step_gate->pass();
    return SGD::step(std::move(closure));
  }
};

}  // namespace

}  // namespace libtorch_dist_test
template <>
struct ferry::torch_optimizer_traits<libtorch_dist_test::slow_sgd> {
  using options_type = torch::optim::SGDOptions;
};

namespace libtorch_dist_test {

TEST_CASE("an optimizer that ends while a pass runs its update") {
  step_gate = std::make_unique<ferry_test::gate>();
  cluster group(2);
  {
    two_halves model(group[0]);
    const auto owned = [&] { return std::stoul(group[1].debug_info("num_owner_rrefs")); };
    const std::size_t before = owned();
    std::optional<ferry::distributed_torch_optimizer<slow_sgd>> optimizer(
        std::in_place, ferry::torch_parameters(model.remote), torch::optim::SGDOptions(0.1));
    const dist::context context(group[0]);
    const tensor root = ferry::from_torch(model.loss(at::rand({6, 4})));
    const ferry::future<void> pass = dist::backward_async(context, root, {.then = *optimizer});
    step_gate->await_arrivals(1);
    optimizer.reset();
    while (owned() > before) std::this_thread::yield();  // the worker has dropped it; the watchdog bounds it
    step_gate->open();
    pass.get();
  }
  step_gate.reset();
}

TEST_CASE("gradients of libtorch's leaves are bounded together with those of ferry's") {
  cluster group(2);
  const rref<half_impl> there = group[0].remote<ferry::make<half_impl>>("worker1", 4, 5);
  const tensor own = ferry::require_grad(ferry::full({5}, 3.0, ferry::dtype::f32));
  std::vector<rref<tensor>> parameters = ferry::torch_parameters(there);
  parameters.push_back(group[0].make_rref(own));
  parameters.push_back(parameters.front());  // counts once
  const at::Tensor x = at::rand({6, 4});
  const dist::context context(group[0]);
  backward(context, ferry::to_torch(ferry::from_torch(there.rpc_sync<&half_impl::forward>(x)) * own).pow(2).sum());
  const auto squares = [&] {
    double sum = ferry::to_torch(context.gradients().at(own)).pow(2).sum().item<double>();
    for (const ferry::torch_leaf_gradient& each : ferry::torch_gradients(dist::get_gradients(context.id(), group[1])))
      sum += each.gradient.pow(2).sum().item<double>();
    return sum;
  };
  const double before = std::sqrt(squares());
  REQUIRE(before > 1);
  CHECK(ferry::clip_grad_norm_(context.id(), parameters, 0.5) == doctest::Approx(before).epsilon(1e-4));
  CHECK(std::sqrt(squares()) == doctest::Approx(0.5).epsilon(1e-4));
}

TEST_CASE("gradients of chosen tensors of libtorch") {
  cluster group(2);
  const at::Tensor a = leaf({3, 4});
  const at::Tensor b = leaf({3, 4});
  const at::Tensor unused = leaf({2});
  const at::Tensor inner = a * 3;
  const dist::context context(group[0]);
  const at::Tensor loss = group[0].rpc_sync<product>("worker1", inner, b).pow(2).sum();
  const std::vector<tensor> found = dist::gradients(
      context, ferry::from_torch(loss),
      {ferry::from_torch(a), ferry::from_torch(unused), ferry::from_torch(inner), ferry::from_torch(b)});
  REQUIRE(found.size() == 4);
  const at::Tensor same = (inner * b).pow(2).sum();
  const std::vector<at::Tensor> expected = torch::autograd::grad({same}, {a, inner, b});
  CHECK(at::allclose(ferry::to_torch(found[0]), expected[0]));
  CHECK_FALSE(found[1].defined());
  CHECK(at::allclose(ferry::to_torch(found[2]), expected[1]));
  CHECK(at::allclose(ferry::to_torch(found[3]), expected[2]));
  CHECK_FALSE(ferry::torch_gradient(context.gradients(), a).defined());
}

TEST_CASE("an optimizer refuses what it cannot update, and names each owner that failed") {
  cluster group(2);
  using optimizer_type = ferry::distributed_torch_optimizer<torch::optim::SGD>;
  const auto with = torch::optim::SGDOptions(0.1);
  expect_error(errc::invalid_argument, "there are no parameters", [&] { optimizer_type({}, with); });
  const rref<tensor> own(ferry::require_grad(ferry::ones({2})));
  expect_error(errc::invalid_argument, "is no leaf of libtorch", [&] { optimizer_type({own}, with); });
  const rref<half_impl> there = group[0].remote<ferry::make<half_impl>>("worker1", 2, 2);
  std::vector<rref<tensor>> parameters = ferry::torch_parameters(there);
  parameters.push_back(parameters[0]);
  expect_error(errc::invalid_argument, "worker1: ", [&] { optimizer_type(parameters, with); });
  parameters.pop_back();
  optimizer_type optimizer(parameters, with);
  expect_error(errc::invalid_argument, "no group 1", [&] { optimizer.set_lr(1, 1); });
  expect_error(errc::invalid_argument, "has the context", [&] { optimizer.step(dist::context_id{5}); });
}

TEST_CASE("gradients of libtorch go back to another process") {
  ferry_test::temporary_directory directory;
  const std::string meeting = "file://" + directory.file("store");
  ferry_test::child_process child({.role = "libtorch dist member", .arguments = {meeting}});
  ferry::worker self = ferry::init_rpc({.name = "worker0", .rank = 0, .world_size = 2, .init_method = meeting});
  train<torch::optim::Adam>(self, torch::optim::AdamOptions(0.05), false);
  train<torch::optim::Adam>(self, torch::optim::AdamOptions(0.05), true);
  self.shutdown();
  CHECK(child.wait() == 0);
}

TEST_CASE("passes leave nothing") {
  cluster group(2);
  const at::Tensor a = leaf({8});
  for (int i = 0; i != 200; ++i) {
    const dist::context context(group[0]);
    backward(context, group[0].rpc_sync<product>("worker1", a, a).sum());
    CHECK(a.use_count() <= 3);  // `a`, its accumulator, and the one that the context keeps
  }
  CHECK(a.use_count() <= 2);
}

TEST_CASE("a worker with a list of methods serves the optimizers of torch::optim that it is told to") {
  const ferry_test::cluster_options with_list{.configure = [](ferry::worker_config& config) {
    if (config.rank == 1) config.serve = ferry::serve_list<ferry::make<listed_module>>;
  }};
  using optimizer_type = ferry::distributed_torch_optimizer<torch::optim::Adagrad>;
  const torch::optim::AdagradOptions with(0.5);
  {
    cluster group(2, with_list);
    const auto there = group[0].remote<ferry::make<listed_module>>("worker1");
    expect_error(errc::unknown_method, "list of methods", [&] { (void)ferry::torch_parameters(there); });
  }
  ferry::serve_torch_parameters<listed_module>();
  {
    cluster group(2, with_list);
    const auto there = group[0].remote<ferry::make<listed_module>>("worker1");
    const auto parameters = ferry::torch_parameters(there);
    expect_error(errc::unknown_method, "list of methods", [&] { optimizer_type(parameters, with); });
  }
  ferry::serve_torch_optimizers<torch::optim::Adagrad>();
  cluster group(2, with_list);
  const auto there = group[0].remote<ferry::make<listed_module>>("worker1");
  optimizer_type optimizer(ferry::torch_parameters(there), with);
  optimizer.set_lr(0.25);
  optimizer.load(optimizer.save());
  const dist::context context(group[0]);
  expect_error(errc::invalid_argument, "", [&] { optimizer.step(dist::context_id{5}); });
}

}  // namespace libtorch_dist_test

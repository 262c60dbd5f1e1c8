// Parameters by name, copies, moves, modes.

#include <ferry/nn/module.hpp>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "expect_error.hpp"
#include "models.hpp"

namespace module_test {

using ferry::dtype;
using ferry::errc;
using ferry::tensor;

}  // namespace module_test
namespace nn = ferry::nn;

namespace module_test {

namespace {

template <class M>
std::vector<std::string> names_of(const M& m) {
  std::vector<std::string> names;
  for (const nn::named_parameter& each : nn::named_parameters(m)) names.push_back(each.name);
  return names;
}

using strings = std::vector<std::string>;

struct twice {
  nn::linear a{1, 1};
  nn::linear b{1, 1};
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("layer", a);
    visit("layer", b);
  }
};

struct of_pointers {
  std::shared_ptr<nn::linear> layer = std::make_shared<nn::linear>(2, 1);
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("layer", layer);
  }
};

struct of_tensors {
  std::array<tensor, 3> all;
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("all", all);
  }
};

}  // namespace

static_assert(nn::module<nn::linear> && nn::module<nn::embedding> && nn::module<nn::embedding_bag> &&
              nn::module<nn::layer_norm> && nn::module<nn::dropout> && nn::module<nn::gru_cell> &&
              nn::module<nn::sequential<nn::linear>> && nn::module<models::residual> && nn::module<models::tied>);
static_assert(!nn::module<int> && !nn::module<tensor> && !nn::module<tensor (*)(const tensor&)>);

TEST_CASE("parameters have the names of the members that lead to them") {
  CHECK(names_of(nn::linear(2, 3)) == strings{"weight", "bias"});
  CHECK(names_of(nn::linear(2, 3, {.bias = false})) == strings{"weight"});
  CHECK(names_of(nn::dropout()).empty());
  const nn::sequential net(nn::linear(2, 3), ferry::relu, nn::sequential(nn::linear(3, 1), nn::layer_norm({1})));
  CHECK(names_of(net) == strings{"0.weight", "0.bias", "2.0.weight", "2.0.bias", "2.1.weight", "2.1.bias"});
  CHECK(names_of(models::residual()) == strings{"scale", "norm.weight", "norm.bias", "layers.0.weight", "layers.0.bias",
                                                "layers.1.weight", "layers.1.bias"});
  CHECK(nn::count_parameters(models::residual()) == 4 + 8 + 2 * 20);
  CHECK(nn::named_parameters(net)[2].value.same_as(std::get<0>(std::get<2>(net.layers).layers).weight));
}

TEST_CASE("parameters are leaves that require gradients, each once") {
  const models::tied model;
  const std::vector<tensor> all = nn::parameters(model);
  CHECK(names_of(model).size() == all.size());
  CHECK(names_of(model).front() == "table.weight");
  CHECK(names_of(model)[1] == "present.weight");
  CHECK(names_of(model).back() == "elsewhere.layers.1.bias");
  for (const tensor& each : all) CHECK((each.requires_grad() && ferry::is_leaf(each)));
  const ferry::optimizer<ferry::sgd> takes_them(all);
}

TEST_CASE("frozen parameters are parameters") {
  nn::linear layer(2, 2);
  ferry::require_grad(layer.weight, false);
  CHECK(names_of(layer) == strings{"weight", "bias"});
  const nn::linear copy = nn::clone(layer);
  CHECK((!copy.weight.requires_grad() && copy.bias.requires_grad()));
}

TEST_CASE("what cannot be a parameter is refused") {
  expect_error(errc::invalid_argument, "two parameters of a module are called 'layer.weight'",
               [] { (void)nn::parameters(twice()); });
  of_tensors computed;
  computed.all[1] = ferry::require_grad(ferry::ones({2})) * 2;
  expect_error(errc::invalid_argument, "the parameter 'all.1' was computed", [&] { (void)nn::parameters(computed); });
}

TEST_CASE("copies share parameters, clones do not") {
  models::residual model;
  const models::residual copy = model;
  const models::residual own = nn::clone(model);
  const auto values = nn::parameters(model);
  for (std::size_t i = 0; i != values.size(); ++i) {
    CHECK(nn::parameters(copy)[i].same_as(values[i]));
    const tensor cloned = nn::parameters(own)[i];
    CHECK(!cloned.same_as(values[i]));
    CHECK(cloned.storage().data() != values[i].storage().data());
    CHECK(cloned.requires_grad());
    CHECK(ferry::equal(ferry::detach(cloned), ferry::detach(values[i])));
  }
  ferry::backward(ferry::sum(model(ferry::ones({1, 4}))));
  CHECK(ferry::grad(copy.scale).defined());
  CHECK(!ferry::grad(own.scale).defined());
}

TEST_CASE("a clone does not reach through pointers that a copy shares") {
  const of_pointers here;
  const tensor before = here.layer->weight;
  expect_error(errc::invalid_argument, "clone: the parameter 'layer.weight' is behind a pointer",
               [&] { (void)nn::clone(here); });
  CHECK(here.layer->weight.same_as(before));
}

TEST_CASE("sparse gradients move along") {
  nn::embedding table(4, 2, {.sparse_gradient = true});
  ferry::backward(ferry::sum(table(ferry::tensor_of<std::int64_t>({1, 3}))));
  nn::to(table, dtype::f64);
  REQUIRE(ferry::has_sparse_grad(table.weight));
  CHECK(ferry::sparse_grad(table.weight).dtype() == dtype::f64);
  CHECK(ferry::equal(ferry::sparse_grad(table.weight).to_dense().select(1, 1), ferry::tensor_of({0., 1., 0., 1.})));
}

TEST_CASE("frozen parameters that have a gradient are left, and cleared") {
  const tensor w = ferry::require_grad(ferry::tensor_of({10.}));
  const tensor rows = ferry::require_grad(ferry::ones({2, 2}));
  ferry::backward(ferry::sum(w * 3) +
                  ferry::sum(ferry::embedding(rows, ferry::tensor_of<std::int64_t>({1}), {.sparse_gradient = true}))
                      .to(dtype::f64));
  ferry::optimizer<ferry::sgd> optimizer({w, rows}, {.lr = 1});
  ferry::require_grad(w, false);
  ferry::require_grad(rows, false);
  CHECK(ferry::clip_grad_norm_(std::vector{w, rows}, 1).item<double>() == 0);
  optimizer.step();
  CHECK(w.item<double>() == 10);
  CHECK(ferry::equal(rows, ferry::ones({2, 2})));
  optimizer.zero_grad();
  ferry::require_grad(w);
  ferry::require_grad(rows);
  CHECK_FALSE(ferry::grad(w).defined());
  CHECK_FALSE(ferry::has_sparse_grad(rows));
}

TEST_CASE("clones keep what is tied") {
  of_tensors model;
  model.all[0] = ferry::require_grad(ferry::ones({2}));
  model.all[2] = model.all[0];
  of_tensors own = nn::clone(model);
  CHECK(own.all[0].same_as(own.all[2]));
  CHECK(!own.all[0].same_as(model.all[0]));
  nn::to(own, dtype::f64);
  CHECK(own.all[0].same_as(own.all[2]));
  CHECK(!own.all[1].defined());
}

TEST_CASE("conversions make new leaves, with their gradients") {
  nn::linear layer(3, 2);
  const tensor before = layer.weight;
  nn::to(layer, dtype::f32);
  CHECK(layer.weight.same_as(before));
  ferry::backward(ferry::sum(layer(ferry::ones({1, 3}))));
  nn::to(layer, dtype::f64);
  CHECK(layer.weight.dtype() == dtype::f64);
  CHECK(layer.bias.dtype() == dtype::f64);
  CHECK((layer.weight.requires_grad() && ferry::is_leaf(layer.weight)));
  CHECK(ferry::equal(ferry::detach(layer.weight), ferry::detach(before).to(dtype::f64)));
  CHECK(ferry::equal(ferry::grad(layer.weight), ferry::ones({2, 3}, dtype::f64)));
  CHECK(before.dtype() == dtype::f32);
  expect_error(errc::bad_dtype, "parameters are f32 or f64, not f16", [&] { nn::to(layer, dtype::f16); });

  of_tensors numbers;
  numbers.all[0] = ferry::arange(3);
  numbers.all[1] = ferry::ones({1}, dtype::f16);
  nn::to(numbers, dtype::f32);
  CHECK(numbers.all[0].dtype() == dtype::i64);
  CHECK(numbers.all[1].dtype() == dtype::f32);
}

TEST_CASE("train and eval reach every module") {
  models::tied model;
  nn::eval(model);
  CHECK((!model.training && !model.drop.training));
  nn::train(model);
  CHECK((model.training && model.drop.training));
  nn::sequential net(nn::linear(2, 2), nn::dropout(0.9), nn::sequential(nn::dropout(0.9)));
  nn::train(net, false);
  CHECK(!std::get<0>(std::get<2>(net.layers).layers).training);
  const tensor x = ferry::ones({4, 2});
  CHECK(ferry::equal(ferry::detach(net(x)), ferry::detach(std::get<0>(net.layers)(x))));
}

}  // namespace module_test

// Results and gradients of modules, equal to those that PyTorch has computed.

#include "torch_modules.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "models.hpp"

namespace torch_test {

using ferry::dtype;
using ferry::tensor;
using tensors = std::vector<tensor>;

}  // namespace torch_test
namespace nn = ferry::nn;

namespace torch_test {

namespace {

struct recorded_case {
  std::string name;
  std::vector<nn::named_parameter> parameters;
  tensors inputs;
  tensor result;
  tensor weights;
  tensors gradients;        // of the parameters
  tensors input_gradients;  // of the inputs of f64
};

tensor read_tensor(std::istringstream& line) {
  std::string type;
  std::size_t rank = 0;
  line >> type >> rank;
  ferry::dims shape(rank, std::int64_t{0});
  for (std::size_t axis = 0; axis != rank; ++axis) line >> shape[axis];
  tensor t = ferry::empty(shape, type == "f64" ? dtype::f64 : dtype::i64);
  for (std::int64_t i = 0; i != t.numel(); ++i) {
    if (type == "f64") {
      line >> t.data<double>()[i];
    } else {
      line >> t.data<std::int64_t>()[i];
    }
  }
  REQUIRE(!line.fail());
  return t;
}

std::vector<recorded_case> recorded_cases() {
  std::vector<recorded_case> all;
  std::istringstream text(torch_modules);
  for (std::string each; std::getline(text, each);) {
    std::istringstream line(each);
    std::string kind;
    line >> kind;
    if (kind == "case") line >> all.emplace_back().name;
    if (kind == "parameter") {
      std::string name;
      line >> name;
      all.back().parameters.push_back({name, read_tensor(line)});
    }
    if (kind == "input") all.back().inputs.push_back(read_tensor(line));
    if (kind == "result") all.back().result = read_tensor(line);
    if (kind == "weights") all.back().weights = read_tensor(line);
    if (kind == "gradient") all.back().gradients.push_back(read_tensor(line));
    if (kind == "input_gradient") all.back().input_gradients.push_back(read_tensor(line));
  }
  return all;
}

void check_tensor(const tensor& found, const tensor& wanted) {
  REQUIRE(found.defined());
  CHECK(found.shape() == wanted.shape());
  CHECK(ferry::allclose(ferry::detach(found), wanted, 1e-11, 1e-12));
}

// The module takes the recorded parameters by their names: PyTorch's.
template <class M>
void check_module(M module, const recorded_case& expected) {
  std::vector<nn::named_parameter> found = nn::named_parameters(module);
  REQUIRE(found.size() == expected.parameters.size());
  for (std::size_t i = 0; i != found.size(); ++i) CHECK(found[i].name == expected.parameters[i].name);
  nn::load(module, expected.parameters);
  tensors inputs;
  for (const tensor& input : expected.inputs) {
    inputs.push_back(input.dtype() == dtype::f64 ? ferry::require_grad(input.clone()) : input);
  }
  tensor result;
  if constexpr (requires { module(inputs[0], inputs[0]); }) {
    result = inputs.size() == 2 ? module(inputs[0], inputs[1]) : module(inputs[0]);
  } else {
    result = module(inputs.at(0));
  }
  check_tensor(result, expected.result);
  ferry::backward(ferry::sum(result * expected.weights));
  for (std::size_t i = 0; i != found.size(); ++i) {
    CAPTURE(found[i].name);
    check_tensor(ferry::grad(found[i].value), expected.gradients.at(i));
  }
  std::size_t next = 0;
  for (const tensor& input : inputs) {
    if (input.dtype() == dtype::f64) check_tensor(ferry::grad(input), expected.input_gradients.at(next++));
  }
}

// As record_torch.py makes them.
const std::map<std::string, std::function<void(const recorded_case&)>>& checks() {
  constexpr dtype f64 = dtype::f64;
  const auto of = [](auto make) { return [=](const recorded_case& expected) { check_module(make(), expected); }; };
  const auto linear = of([=] { return nn::linear(4, 3, {.dtype = f64}); });
  static const std::map<std::string, std::function<void(const recorded_case&)>> all{
      {"linear", linear},
      {"linear_of_a_cube", linear},
      {"linear_of_a_vector", linear},
      {"linear_without_bias", of([=] { return nn::linear(4, 3, {.bias = false, .dtype = f64}); })},
      {"embedding", of([=] { return nn::embedding(5, 3, {.dtype = f64}); })},
      {"embedding_with_padding", of([=] { return nn::embedding(5, 3, {.padding = 2, .dtype = f64}); })},
      {"embedding_bag_sum", of([=] { return nn::embedding_bag(5, 3, {.mode = ferry::bag_mode::sum, .dtype = f64}); })},
      {"embedding_bag_mean", of([=] { return nn::embedding_bag(5, 3, {.dtype = f64}); })},
      {"embedding_bag_max", of([=] { return nn::embedding_bag(5, 3, {.mode = ferry::bag_mode::max, .dtype = f64}); })},
      {"layer_norm", of([=] { return nn::layer_norm({4}, {.dtype = f64}); })},
      {"layer_norm_of_two_axes", of([=] {
         return nn::layer_norm({3, 4}, {.epsilon = 1e-2, .dtype = f64});
       })},
      {"layer_norm_without_weight", of([=] { return nn::layer_norm({4}, {.affine = false, .dtype = f64}); })},
      {"dropout_in_use", of([] {
         nn::dropout drop(0.5);
         nn::eval(drop);
         return drop;
       })},
      {"gru_cell", of([=] { return nn::gru_cell(4, 2, {.dtype = f64}); })},
      {"gru_cell_without_state", of([=] { return nn::gru_cell(4, 2, {.dtype = f64}); })},
      {"gru_cell_without_bias", of([=] { return nn::gru_cell(4, 2, {.bias = false, .dtype = f64}); })},
      {"sequential", of([=] {
         return nn::sequential(nn::linear(4, 5, {.dtype = f64}), ferry::relu, nn::linear(5, 2, {.dtype = f64}),
                               [](const tensor& x) { return ferry::sigmoid(x); });
       })},
      {"residual", of([=] { return models::residual(f64); })},
  };
  return all;
}

}  // namespace

TEST_CASE("parameters, results and gradients of modules are PyTorch's") {
  std::size_t count = 0;
  for (const recorded_case& each : recorded_cases()) {
    CAPTURE(each.name);
    const auto known = checks().find(each.name);
    REQUIRE(known != checks().end());
    known->second(each);
    ++count;
  }
  CHECK(count == checks().size());
}

}  // namespace torch_test

// Values and gradients of operations, equal to those that PyTorch has computed.

#include "torch_values.hpp"

#include <cstdint>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/autograd/derivatives/derivatives.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

namespace torch_test {

using ferry::tensor;
using tensors = std::vector<tensor>;

namespace {

struct recorded_case {
  std::string name;
  tensors inputs;
  tensors gradients;
  tensor result;
  tensor weights;
};

tensor read_tensor(std::istringstream& line) {
  std::string type;
  std::size_t rank = 0;
  line >> type >> rank;
  ferry::dims shape(rank, std::int64_t{0});
  for (std::size_t axis = 0; axis != rank; ++axis) line >> shape[axis];
  tensor t = ferry::empty(shape, type == "f64" ? ferry::dtype::f64 : ferry::dtype::i64);
  for (std::int64_t i = 0; i != t.numel(); ++i) {
    if (type == "f64") {
      line >> t.data<double>()[i];
    } else {
      line >> t.data<std::int64_t>()[i];
    }
  }
  REQUIRE(!line.fail());
  return type == "bool" ? t.to(ferry::dtype::bool_) : t;
}

std::vector<recorded_case> recorded_cases() {
  std::vector<recorded_case> all;
  std::istringstream text(torch_values);
  for (std::string each; std::getline(text, each);) {
    std::istringstream line(each);
    std::string kind;
    line >> kind;
    if (kind == "case") line >> all.emplace_back().name;
    if (kind == "input") all.back().inputs.push_back(read_tensor(line));
    if (kind == "result") all.back().result = read_tensor(line);
    if (kind == "weights") all.back().weights = read_tensor(line);
    if (kind == "gradient") all.back().gradients.push_back(read_tensor(line));
  }
  return all;
}

using function = std::function<tensor(const tensors&)>;

const std::map<std::string, function>& functions() {
  static const std::map<std::string, function> all{
      {"add", [](const tensors& in) { return ferry::add(in[0], in[1], 2); }},
      {"sub", [](const tensors& in) { return ferry::sub(in[0], in[1], 2); }},
      {"mul", [](const tensors& in) { return in[0] * in[1]; }},
      {"div", [](const tensors& in) { return in[0] / in[1]; }},
      {"neg", [](const tensors& in) { return -in[0]; }},
      {"pow_scalar", [](const tensors& in) { return ferry::pow(in[0], 2.5); }},
      {"pow", [](const tensors& in) { return ferry::pow(in[0], in[1]); }},
      {"exp", [](const tensors& in) { return ferry::exp(in[0]); }},
      {"log", [](const tensors& in) { return ferry::log(in[0]); }},
      {"sqrt", [](const tensors& in) { return ferry::sqrt(in[0]); }},
      {"abs", [](const tensors& in) { return ferry::abs(in[0]); }},
      {"clamp", [](const tensors& in) { return ferry::clamp(in[0], -0.6, 0.55); }},
      {"minimum", [](const tensors& in) { return ferry::minimum(in[0], in[1]); }},
      {"maximum", [](const tensors& in) { return ferry::maximum(in[0], in[1]); }},
      {"maximum_of_equals", [](const tensors& in) { return ferry::maximum(in[0], in[1]); }},
      {"tanh", [](const tensors& in) { return ferry::tanh(in[0]); }},
      {"sigmoid", [](const tensors& in) { return ferry::sigmoid(in[0]); }},
      {"relu", [](const tensors& in) { return ferry::relu(in[0]); }},
      {"silu", [](const tensors& in) { return ferry::silu(in[0]); }},
      {"softplus", [](const tensors& in) { return ferry::softplus(in[0], 2, 1.5); }},
      {"gelu", [](const tensors& in) { return ferry::gelu(in[0]); }},
      {"gelu_tanh", [](const tensors& in) { return ferry::gelu_tanh(in[0]); }},
      {"softmax", [](const tensors& in) { return ferry::softmax(in[0], 1); }},
      {"softmax_first_axis", [](const tensors& in) { return ferry::softmax(in[0], 0); }},
      {"log_softmax", [](const tensors& in) { return ferry::log_softmax(in[0], 1); }},
      {"logsumexp", [](const tensors& in) { return ferry::logsumexp(in[0], 0); }},
      {"matmul", [](const tensors& in) { return ferry::matmul(in[0], in[1]); }},
      {"matmul_of_batches", [](const tensors& in) { return ferry::matmul(in[0], in[1]); }},
      {"matmul_of_vectors", [](const tensors& in) { return ferry::matmul(in[0], in[1]); }},
      {"linear", [](const tensors& in) { return ferry::linear(in[0], in[1], in[2]); }},
      {"sum", [](const tensors& in) { return ferry::sum(in[0], {0}); }},
      {"mean", [](const tensors& in) { return ferry::mean(in[0], {1}, true); }},
      {"max", [](const tensors& in) { return ferry::max(in[0], 1).values; }},
      {"min_of_all", [](const tensors& in) { return ferry::min(in[0]); }},
      {"topk", [](const tensors& in) { return ferry::topk(in[0], 2).values; }},
      {"index_select", [](const tensors& in) { return ferry::index_select(in[0], 0, in[1]); }},
      {"gather", [](const tensors& in) { return ferry::gather(in[0], 0, in[1]); }},
      {"index_add", [](const tensors& in) { return ferry::index_add(in[0], 0, in[1], in[2], 0.5); }},
      {"scatter_add", [](const tensors& in) { return ferry::scatter_add(in[0], 0, in[1], in[2]); }},
      {"where", [](const tensors& in) { return ferry::where(in[0], in[1], in[2]); }},
      {"masked_fill", [](const tensors& in) { return ferry::masked_fill(in[0], in[1], 2); }},
      {"cat", [](const tensors& in) { return ferry::cat(in, 0); }},
      {"stack", [](const tensors& in) { return ferry::stack(in, 1); }},
      {"split", [](const tensors& in) { return ferry::split(in[0], 3, 1).at(1); }},
      {"embedding", [](const tensors& in) { return ferry::embedding(in[0], in[1]); }},
      {"embedding_bag_sum",
       [](const tensors& in) { return ferry::embedding_bag(in[0], in[1], in[2], ferry::bag_mode::sum); }},
      {"embedding_bag_mean",
       [](const tensors& in) { return ferry::embedding_bag(in[0], in[1], in[2], ferry::bag_mode::mean); }},
      {"embedding_bag_max",
       [](const tensors& in) { return ferry::embedding_bag(in[0], in[1], in[2], ferry::bag_mode::max); }},
      {"layer_norm", [](const tensors& in) { return ferry::layer_norm(in[0], {4}, in[1], in[2]); }},
      {"mse_loss", [](const tensors& in) { return ferry::mse_loss(in[0], in[1]); }},
      {"huber_loss", [](const tensors& in) { return ferry::huber_loss(in[0], in[1], 0.8); }},
      {"cross_entropy", [](const tensors& in) { return ferry::cross_entropy(in[0], in[1]); }},
      {"cross_entropy_ignoring",
       [](const tensors& in) { return ferry::cross_entropy(in[0], in[1], ferry::reduction::mean, -100); }},
      {"nll_loss", [](const tensors& in) { return ferry::nll_loss(in[0], in[1], ferry::reduction::sum); }},
      {"bce_with_logits", [](const tensors& in) { return ferry::bce_with_logits(in[0], in[1]); }},
      {"one_hot", [](const tensors& in) { return ferry::one_hot(in[0], 3); }},
      {"argmax", [](const tensors& in) { return ferry::argmax(in[0], 0); }},
  };
  return all;
}

}  // namespace

TEST_CASE("each operation with a gradient has recorded values") {
  // Under another name than the descriptor's.
  const std::map<std::string, std::string> other{{"add_scalar", "add"},
                                                 {"mul_scalar", "mul"},
                                                 {"div_scalar", "mean"},
                                                 {"extreme", "max"},
                                                 {"scatter_add_", "scatter_add"},
                                                 {"add_", "add"},
                                                 {"add_scalar_", "add"},
                                                 {"sub_", "sub"},
                                                 {"mul_", "mul"},
                                                 {"mul_scalar_", "mul"}};
  ferry::operations::for_each([&]<class Op>(std::type_identity<Op>) {
    if constexpr (!requires { ferry::derivative<Op>::none; }) {
      const std::string name(Op::name);
      CAPTURE(name);
      CHECK(functions().contains(other.contains(name) ? other.at(name) : name));
    }
  });
}

TEST_CASE("values and gradients are PyTorch's") {
  std::size_t count = 0;
  for (const recorded_case& each : recorded_cases()) {
    CAPTURE(each.name);
    const auto known = functions().find(each.name);
    REQUIRE(known != functions().end());
    ++count;
    tensors inputs;
    for (const tensor& input : each.inputs)
      inputs.push_back(input.dtype() == ferry::dtype::f64 ? ferry::require_grad(input) : input);
    const tensor result = known->second(inputs);
    CHECK(result.shape() == each.result.shape());
    CHECK(ferry::allclose(ferry::detach(result), each.result, 1e-12, 1e-13));
    if (!each.weights.defined()) continue;
    ferry::backward(ferry::sum(result * each.weights));
    std::size_t next = 0;
    for (const tensor& input : inputs) {
      if (input.dtype() != ferry::dtype::f64) continue;
      CAPTURE(next);
      CHECK(ferry::allclose(ferry::grad(input), each.gradients.at(next++), 1e-11, 1e-12));
    }
  }
  CHECK(count == functions().size());
}

}  // namespace torch_test

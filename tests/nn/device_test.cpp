// On the fake CUDA runtime: the CPU's values, in stream order.

#include <cstdint>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/archives/binary.hpp>

#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/nn/archive.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <optim/kernels.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "launcher.hpp"

namespace device_test {

using ferry::device;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

}  // namespace device_test
namespace nn = ferry::nn;

namespace device_test {

namespace {

constexpr device gpu{ferry::device_kind::cuda, 1};
constexpr device host{};

constexpr ferry::detail::optimizer_kernels kernels = ferry::detail::make_optimizer_kernels<fake_cuda::host_launcher>();
// Before main(), as the double's own.
const bool installed = [] {
  ferry::detail::use_optimizer_kernels(&kernels);
  return true;
}();

struct text_model {
  nn::embedding words{6, 4, {.padding = 0}};
  nn::embedding_bag bags{6, 4, {.mode = ferry::bag_mode::sum}};
  nn::layer_norm norm{ferry::dims{4}};
  nn::dropout drop{0.5};

  tensor operator()(const tensor& indices) const { return drop(norm(words(indices)) * bags(indices).unsqueeze(1)); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("words", words);
    visit("bags", bags);
    visit("norm", norm);
    visit("drop", drop);
  }
};

const tensor indices = ferry::tensor_of<std::int64_t>({{0, 3, 5}, {2, 2, 0}});

}  // namespace

TEST_CASE("modules compute on devices what they compute on the CPU") {
  text_model here;
  ferry::manual_seed(4);
  const tensor expected = here(indices);
  ferry::backward(ferry::sum(expected * expected));
  for (int round = 0; round != 5; ++round) {  // the double delays streams at random
    text_model there = nn::clone(here);
    nn::to(there, gpu);
    for (const tensor& each : nn::parameters(there)) {
      CHECK(each.device() == gpu);
      CHECK((each.requires_grad() && ferry::is_leaf(each)));
    }
    ferry::manual_seed(4);
    const tensor found = there(indices.to(gpu));
    CHECK(found.device() == gpu);
    CHECK(ferry::allclose(ferry::detach(found).to(host), ferry::detach(expected)));
    ferry::backward(ferry::sum(found * found));
    const auto wanted = nn::named_parameters(here);
    for (std::size_t i = 0; i != wanted.size(); ++i) {
      CAPTURE(wanted[i].name);
      CHECK(ferry::allclose(ferry::grad(nn::parameters(there)[i]).to(host), ferry::grad(wanted[i].value), 1e-5, 1e-6));
    }
  }
}

TEST_CASE("modules are made on devices, with the CPU's numbers") {
  const auto make = [](device where) {
    ferry::generator source(2);
    return nn::gru_cell(3, 2, {.device = where}, source);
  };
  const auto there = nn::parameters(make(gpu));
  const auto here = nn::parameters(make(host));
  for (std::size_t i = 0; i != here.size(); ++i) {
    CHECK(there[i].device() == gpu);
    CHECK(ferry::equal(ferry::detach(there[i]).to(host), ferry::detach(here[i])));
  }
  const nn::embedding table(4, 2, {.padding = 1, .device = gpu});
  CHECK(ferry::equal(ferry::detach(table.weight).to(host).select(0, 1), ferry::zeros({2})));
}

TEST_CASE("gradients move along, and what is there already stays") {
  nn::linear layer(2, 2);
  ferry::backward(ferry::sum(layer(ferry::ones({1, 2}))));
  nn::to(layer, gpu);
  CHECK(ferry::grad(layer.weight).device() == gpu);
  const tensor weight = layer.weight;
  nn::to(layer, gpu);
  CHECK(layer.weight.same_as(weight));
  nn::to(layer, host);
  CHECK(ferry::equal(ferry::grad(layer.weight), ferry::ones({2, 2})));
  expect_error(errc::bad_device, "", [&] { nn::to(layer, device{ferry::device_kind::cuda, 99}); });
  CHECK(layer.weight.device() == host);
}

TEST_CASE("parameters are saved on devices and loaded on others") {
  text_model first;
  nn::to(first, gpu);
  std::stringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    nn::save(first, archive);
  }
  text_model second;
  nn::to(second, device{ferry::device_kind::cuda, 0});
  const tensor kept = second.words.weight;
  {
    cereal::BinaryInputArchive archive(file);
    nn::load(second, archive);
  }
  CHECK(second.words.weight.same_as(kept));
  CHECK(kept.device() == device{ferry::device_kind::cuda, 0});
  const auto wanted = nn::parameters(first);
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    CHECK(ferry::equal(ferry::detach(nn::parameters(second)[i]).to(host), ferry::detach(wanted[i]).to(host)));
  }
}

TEST_CASE("a step of training on a device is the CPU's") {
  nn::sequential here(nn::linear(6, 5), ferry::relu, nn::linear(5, 3));
  const nn::gru_cell cell_here(3, 4);
  auto there = nn::clone(here);
  auto cell_there = nn::clone(cell_here);
  nn::to(there, gpu);
  nn::to(cell_there, gpu);
  const tensor x = ferry::randn({4, 6});
  const tensor target = ferry::tensor_of<std::int64_t>({0, 3, 1, 2});
  const auto train = [](auto& net, auto& cell, const tensor& input, const tensor& wanted) {
    auto all = nn::parameters(net);
    for (const tensor& each : nn::parameters(cell)) all.push_back(each);
    ferry::optimizer<ferry::adam> optimizer(all, {.lr = 0.1});
    for (int step = 0; step != 3; ++step) {
      optimizer.zero_grad();
      const tensor state = ferry::zeros({4, 4}, dtype::f32, input.device());
      ferry::backward(ferry::cross_entropy(cell(net(input), state), wanted));
      optimizer.step();
    }
    return all;
  };
  auto cell = cell_here;
  const auto expected = train(here, cell, x, target);
  const auto found = train(there, cell_there, x.to(gpu), target.to(gpu));
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i != found.size(); ++i) {
    CHECK(found[i].device() == gpu);
    CHECK(ferry::allclose(ferry::detach(found[i]).to(host), ferry::detach(expected[i]), 1e-3, 1e-4));
  }
}

}  // namespace device_test

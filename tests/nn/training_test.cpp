// Modules learn, and do not gather memory.

#include <cstdint>
#include <fstream>
#include <vector>

#include <unistd.h>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/device/cpu_pool.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "sanitizers.hpp"

namespace training_test {

using ferry::tensor;

}  // namespace training_test
namespace nn = ferry::nn;

namespace training_test {

namespace {

std::int64_t resident_bytes() {
  std::int64_t total = 0;
  std::int64_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

TEST_CASE("XOR is learned") {
  for (const std::uint64_t seed : {1, 2, 3}) {
    CAPTURE(seed);
    ferry::generator source(seed);
    const nn::sequential net(nn::linear(2, 8, {}, source), ferry::tanh, nn::linear(8, 1, {}, source));
    const tensor x = ferry::tensor_of({{0.F, 0.F}, {0.F, 1.F}, {1.F, 0.F}, {1.F, 1.F}});
    const tensor y = ferry::tensor_of({{0.F}, {1.F}, {1.F}, {0.F}});
    ferry::optimizer<ferry::adam> optimizer(nn::parameters(net), {.lr = 0.05});
    for (int step = 0; step != 300; ++step) {
      optimizer.zero_grad();
      ferry::backward(ferry::bce_with_logits(net(x), y));
      optimizer.step();
    }
    const tensor found = ferry::sigmoid(ferry::detach(net(x)));
    CHECK(ferry::allclose(found, y, 0, 0.1));
  }
}

TEST_CASE("a state that is carried along is learned: the parity of bits") {
  ferry::generator source(5);
  const nn::gru_cell cell(1, 8, {}, source);
  const nn::linear out(8, 1, {}, source);
  std::vector<tensor> parameters = nn::parameters(cell);
  for (const tensor& each : nn::parameters(out)) parameters.push_back(each);
  ferry::optimizer<ferry::adam> optimizer(parameters, {.lr = 0.03});
  const tensor bits = ferry::empty({8, 3});
  const tensor parity = ferry::empty({8, 1});
  for (std::int64_t row = 0; row != 8; ++row) {
    for (std::int64_t i = 0; i != 3; ++i) bits.at<float>(row, i) = static_cast<float>((row >> i) & 1);
    parity.at<float>(row, 0) = static_cast<float>((row ^ (row >> 1) ^ (row >> 2)) & 1);
  }
  const auto logits = [&] {
    tensor state;
    for (std::int64_t i = 0; i != 3; ++i) state = cell(bits.narrow(1, i, 1), state);
    return out(state);
  };
  for (int step = 0; step != 400; ++step) {
    optimizer.zero_grad();
    ferry::backward(ferry::bce_with_logits(logits(), parity));
    optimizer.step();
  }
  CHECK(ferry::allclose(ferry::sigmoid(ferry::detach(logits())), parity, 0, 0.1));
}

TEST_CASE("1000 steps need no more memory than 100") {
  ferry::generator source(1);
  nn::sequential net(nn::linear(16, 32, {}, source), nn::layer_norm({32}), ferry::relu, nn::dropout(0.1),
                     nn::linear(32, 4, {}, source));
  ferry::optimizer<ferry::adam> optimizer(nn::parameters(net));
  const tensor x = ferry::randn({24, 16}, source);
  const tensor y = ferry::empty({24}, ferry::dtype::i64);
  for (std::int64_t i = 0; i != 24; ++i) y.at<std::int64_t>(i) = i % 4;
  const auto train = [&](int steps) {
    for (int step = 0; step != steps; ++step) {
      optimizer.zero_grad();
      ferry::backward(ferry::cross_entropy(net(x), y));
      optimizer.step();
    }
  };
  train(100);
  const std::uint64_t reserved = ferry::get_cpu_pool_stats().reserved_bytes;
  const std::int64_t resident = resident_bytes();
  train(1000);
  CHECK(ferry::get_cpu_pool_stats().reserved_bytes == reserved);
  // Sanitizers keep memory that was released.
  if (!ferry_test::sanitized) CHECK(resident_bytes() - resident < 256 * 1024);
}

}  // namespace training_test

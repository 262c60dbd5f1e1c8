// On the fake CUDA runtime: the CPU's gradients, in stream order.

#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "fake_cuda.hpp"

namespace device_test {

using ferry::device;
using ferry::tensor;

namespace {

constexpr device gpu{ferry::device_kind::cuda, 1};

std::vector<tensor> gradients_on(device where) {
  const auto leaf = [&](std::initializer_list<float> values) {
    return ferry::require_grad(ferry::from_span(std::span<const float>(values.begin(), values.size())).to(where));
  };
  const tensor x = leaf({1, 2, 3, 4});
  const tensor w = leaf({2, 0.5, -1, 3});
  tensor y = x * w + x.slice(0, 0, 2).unsqueeze(1).expand({2, 2}).reshape({4}) * 3;
  ferry::mul_(y.slice(0, 1, 3), w.slice(0, 0, 2));
  const tensor weights = ferry::arange(1, 5, 1, ferry::dtype::f32, where);
  ferry::backward(y * y, {.gradients = {weights}});
  return {ferry::grad(x).to(device{}), ferry::grad(w).to(device{})};
}

}  // namespace

TEST_CASE("gradients on a device are the CPU's") {
  const std::vector<tensor> expected = gradients_on({});
  for (int round = 0; round != 5; ++round) {  // the double delays streams at random
    const std::vector<tensor> found = gradients_on(gpu);
    for (std::size_t i = 0; i != expected.size(); ++i) CHECK(ferry::allclose(found[i], expected[i]));
  }
}

TEST_CASE("a pass goes back on the streams of the operations, and the caller's streams wait for it") {
  for (int round = 0; round != 5; ++round) {
    const tensor x = ferry::require_grad(ferry::full({1000}, 2, ferry::dtype::f32, gpu));
    const ferry::stream first = ferry::pool_stream(gpu);
    const ferry::stream second = ferry::pool_stream(gpu);
    first.wait(ferry::current_stream(gpu));
    tensor y;
    {
      const ferry::stream_guard on(first);
      y = x * x;
    }
    second.wait(first);
    tensor z;
    {
      const ferry::stream_guard on(second);
      z = y * 3;
    }
    CHECK(ferry::gradient_edge(z).to->on() == second);
    ferry::current_stream(gpu).wait(second);
    ferry::backward(z + y, {.gradients = {ferry::ones({1000}, ferry::dtype::f32, gpu)}});
    CHECK(ferry::equal(ferry::grad(x).to(device{}), ferry::full({1000}, 16)));
  }
}

TEST_CASE("a gradient crosses devices as its tensor did") {
  const tensor x = ferry::require_grad(ferry::tensor_of({1.f, 2.f}));
  const tensor y = x.to(gpu) * 3;
  const tensor z = y.to(device{ferry::device_kind::cuda, 0}) * 2;
  ferry::backward(ferry::sum(z.to(device{})));
  CHECK(ferry::equal(ferry::grad(x), ferry::tensor_of({6.f, 6.f})));
}

TEST_CASE("the gradient of a copy to the CPU is made on the thread's stream, and those of the device wait for it") {
  for (int round = 0; round != 30; ++round) {
    const tensor x = ferry::require_grad(ferry::full({1000}, 2, ferry::dtype::f32, gpu));
    tensor y;
    {
      const ferry::stream first = ferry::pool_stream(gpu);
      first.wait(ferry::current_stream(gpu));
      const ferry::stream_guard on(first);
      y = (x * x).to(device{});
    }
    ferry::backward(ferry::sum(y * 3));
    CHECK(ferry::allclose(ferry::grad(x).to(device{}), ferry::full({1000}, 12, ferry::dtype::f32)));
  }
}

}  // namespace device_test

// On the fake CUDA runtime: the CPU's values, in stream order, and the host does not wait.

#include <cstdint>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>
#include <cereal/archives/binary.hpp>

#include <ferry/autograd.hpp>
#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/wire/serialize.hpp>
#include <optim/kernels.hpp>

#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "launcher.hpp"
#include "problems.hpp"

namespace device_test {

using ferry::device;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;
using problems::near;

namespace {

constexpr device gpu{ferry::device_kind::cuda, 1};
constexpr device other_gpu{ferry::device_kind::cuda, 0};
constexpr device host{};

constexpr ferry::detail::optimizer_kernels kernels = ferry::detail::make_optimizer_kernels<fake_cuda::host_launcher>();
// Before main(), as the double's own.
const bool installed = [] {
  ferry::detail::use_optimizer_kernels(&kernels);
  return true;
}();

}  // namespace

TEST_CASE("steps on a device are the CPU's") {
  REQUIRE(installed);
  problems::for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    CAPTURE(Algorithm::name);
    for (const dtype type : {dtype::f32, dtype::f64}) {
      const auto with = problems::full_options<Algorithm>();
      const tensor here = ferry::arange(0, 24).to(type).view({4, 6}) * 0.25;
      const tensor there = ferry::zeros({6, 8}, type, gpu).slice(1, 0, 8, 2).transpose(0, 1);
      there.copy_(here);
      typename Algorithm::state here_kept;
      typename Algorithm::state there_kept;
      const std::uint64_t waits = fake_cuda::host_synchronizations();
      for (int round = 0; round != 4; ++round) {  // the double delays streams at random
        const tensor here_gradient = problems::pull(here);
        const tensor there_gradient = problems::pull(there);
        Algorithm::update({&here, 1}, {&here_gradient, 1}, {&here_kept, 1}, with);
        Algorithm::update({&there, 1}, {&there_gradient, 1}, {&there_kept, 1}, with);
      }
      CHECK(fake_cuda::host_synchronizations() == waits);
      CHECK(near(there, here, type == dtype::f64 ? 1e-14 : 1e-6));
      problems::for_each_pair(there_kept, here_kept, [&](auto name, const tensor& a, const tensor& b) {
        CAPTURE(name);
        REQUIRE(a.defined() == b.defined());
        if (a.defined()) CHECK(a.device() == gpu);
        if (a.defined()) CHECK(near(a, b, type == dtype::f64 ? 1e-14 : 1e-6));
      });
    }
  });
}

TEST_CASE("rows on a device are the CPU's") {
  problems::for_each_algorithm([]<class Algorithm>(std::type_identity<Algorithm>) {
    if constexpr (ferry::updates_rows<Algorithm>) {
      CAPTURE(Algorithm::name);
      const auto with = problems::full_options<Algorithm>();
      const tensor here = ferry::arange(0, 30).to(dtype::f64).view({5, 2, 3}) * 0.25;
      const tensor there = here.to(gpu);
      const tensor indices = ferry::tensor_of<std::int64_t>({3, 0, 3, 3});
      const tensor values = ferry::arange(0, 24).to(dtype::f64).view({4, 2, 3}) * 0.125;
      typename Algorithm::state here_kept;
      typename Algorithm::state there_kept;
      for (int round = 0; round != 3; ++round) {
        Algorithm::update_rows(here, indices, values, here_kept, with);
        // Also with indices on the device, which the host reads.
        Algorithm::update_rows(there, round == 1 ? indices.to(gpu) : indices, values.to(gpu), there_kept, with);
      }
      CHECK(near(there, here, 1e-14));
      expect_error(errc::bad_device, "values on cpu for a parameter on cuda:1",
                   [&] { Algorithm::update_rows(there, indices, values, there_kept, with); });
    }
  });
}

TEST_CASE("gradients of devices are bounded there") {
  const tensor a = ferry::tensor_of({3.F, -5.F});
  const std::vector<tensor> values{a.to(gpu), a.to(other_gpu)};
  ferry::clip_value_(values, 4);
  for (const tensor& each : values) CHECK(ferry::equal(each.to(host), ferry::tensor_of({3.F, -4.F})));

  const std::vector<tensor> here{ferry::tensor_of({3., 0.}), ferry::tensor_of({{4.F}}), ferry::zeros({0})};
  const std::vector<tensor> there{here[0].to(gpu), here[1].to(other_gpu), here[2].to(gpu)};
  const std::uint64_t waits = fake_cuda::host_synchronizations();
  const tensor norm = ferry::clip_norm_(there, 1);
  CHECK(fake_cuda::host_synchronizations() == waits);
  CHECK(norm.device() == gpu);
  CHECK(norm.to(host).item<double>() == 5);
  CHECK(ferry::clip_norm_(here, 1).item<double>() == 5);
  for (std::size_t i = 0; i != 2; ++i) CHECK(near(there[i], here[i], 1e-7));
}

TEST_CASE("a step runs on the current stream") {
  for (int round = 0; round != 5; ++round) {
    const tensor p = ferry::require_grad(ferry::full({1000}, 2, dtype::f32, gpu));
    ferry::optimizer<ferry::sgd> optimizer({p}, {.lr = 0.5, .momentum = 0.5});
    const ferry::stream side = ferry::pool_stream(gpu);
    side.wait(ferry::current_stream(gpu));
    {
      const ferry::stream_guard on(side);
      ferry::backward(p * p, {.gradients = {ferry::ones({1000}, dtype::f32, gpu)}});
      optimizer.step();
      CHECK(near(p, ferry::zeros({1000}), 0));
    }
  }
}

TEST_CASE("a checkpoint moves from devices to the CPU and back") {
  const auto make = [](device where) {
    return ferry::optimizer<ferry::adam>({ferry::require_grad(ferry::tensor_of({1., 2.}).to(where))});
  };
  auto there = make(gpu);
  auto here = make(host);
  for (auto* each : {&there, &here}) {
    ferry::set_grad(each->parameters()[0], problems::pull(each->parameters()[0]));
    each->step();
  }
  std::stringstream file;
  {
    cereal::BinaryOutputArchive archive(file);
    archive(there);
  }
  auto loaded = make(other_gpu);
  {
    cereal::BinaryInputArchive archive(file);
    archive(loaded);
  }
  const ferry::adam::state& kept = loaded.state(loaded.parameters()[0]);
  CHECK(kept.steps == 1);
  CHECK(kept.mean.device() == other_gpu);
  CHECK(near(kept.square, here.state(here.parameters()[0]).square, 1e-15));
}

TEST_CASE("gradients on another device are refused") {
  const std::vector<tensor> parameters{ferry::ones({2}, dtype::f32, gpu)};
  std::vector<ferry::sgd::state> states(1);
  expect_error(errc::bad_device, "sgd: the gradient of parameter 0 is f32 [2] on cpu, the parameter f32 [2] on cuda:1",
               [&] { ferry::sgd::update(parameters, std::vector{ferry::ones({2})}, states, {}); });
}

}  // namespace device_test

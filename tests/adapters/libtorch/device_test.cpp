// Tensors of libtorch on CUDA devices, in the order of its current streams, on the fake CUDA runtime.

#include <ferry/adapters/libtorch/ddp.hpp>
#include <ferry/adapters/libtorch/engine.hpp>

#include "torch.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <doctest/doctest.h>

#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"
#include "fake_cuda.hpp"
#include "fake_torch_cuda.hpp"
#include "seam_pass.hpp"

namespace libtorch_test {

using ferry::device;
using ferry::dtype;
using ferry::errc;
using ferry::tensor;

namespace {

C10_REGISTER_GUARD_IMPL(CUDA, fake_cuda_guard)

device gpu(int index) { return {ferry::device_kind::cuda, index}; }
constexpr device host{};

struct newest_first {
  newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::newest_first); }
  ~newest_first() { fake_cuda::set_schedule(fake_cuda::schedule::random); }
};

// Elements of a tensor of libtorch, for work that stands for its kernels: on libtorch's current stream, unknown to ferry.
tensor raw(const at::Tensor& t) {
  return ferry::from_blob(t.data_ptr(), ferry::dims(t.sizes().data(), t.sizes().size()), dtype::f32, nullptr,
                          gpu(t.device().index()));
}
ferry::stream torch_current(int index) {
  return as_ferry(
      c10::impl::getDeviceGuardImpl(c10::kCUDA)->getStream({c10::kCUDA, static_cast<c10::DeviceIndex>(index)}));
}
void torch_fill(const at::Tensor& t, double value) {
  const ferry::stream_guard on(torch_current(t.device().index()));
  raw(t).fill_(value);
}
void torch_copy(const at::Tensor& to, const at::Tensor& from) {
  const ferry::stream_guard on(torch_current(to.device().index()));
  raw(to).copy_(raw(from));
}
// Memory that libtorch allocated.
at::Tensor torch_memory(int index) { return ferry::to_torch(ferry::zeros({1000}, dtype::f32, gpu(index))); }
bool all_are(const tensor& t, double value) { return ferry::equal(t.to(host), ferry::full({1000}, value)); }

}  // namespace

at::Tensor plus_one_on_device(at::Tensor t) {
  const ferry::stream_guard on(torch_current(t.device().index()));
  ferry::add_(raw(t), 1);
  return t;
}

TEST_CASE("devices have the same numbers in both libraries") {
  CHECK((ferry::to_torch(gpu(3)) == at::Device("cuda:3")));
  CHECK(ferry::from_torch(at::Device("cuda:3")) == gpu(3));
  const tensor t = ferry::zeros({4, 2}, dtype::f32, gpu(2));
  const at::Tensor seen = ferry::to_torch(t.transpose(0, 1));
  CHECK(seen.device().index() == 2);
  CHECK(seen.data_ptr() == t.data());
  CHECK(seen.strides().vec() == std::vector<std::int64_t>{1, 2});
  CHECK(ferry::from_torch(seen).storage().same_as(t.storage()));
}

TEST_CASE("libtorch's current stream waits for what ferry queued, and the host does not") {
  const newest_first order;
  const tensor warm = ferry::zeros({1000}, dtype::f32, gpu(1)).to(host);
  const ferry::stream side = ferry::pool_stream(gpu(1));
  const c10::StreamGuard torch_side(fake_streams::instance().make(1));
  for (int i = 0; i != 20; ++i) {
    const auto waits = fake_cuda::host_synchronizations();
    const at::Tensor copy = torch_memory(1);
    at::Tensor seen;
    {
      const ferry::stream_guard on(side);
      const tensor t = ferry::full({1000}, i + 1, dtype::f32, gpu(1));
      seen = ferry::to_torch(t);
    }
    torch_copy(copy, seen);
    CHECK(fake_cuda::host_synchronizations() == waits);
    CHECK(all_are(ferry::from_torch(copy), i + 1));
  }
}

TEST_CASE("ferry's current stream waits for what libtorch queued, and the host does not") {
  const newest_first order;
  const ferry::stream side = ferry::pool_stream(gpu(1));
  const c10::StreamGuard torch_side(fake_streams::instance().make(1));
  for (int i = 0; i != 20; ++i) {
    const at::Tensor t = torch_memory(1);
    const ferry::stream_guard on(side);
    const auto waits = fake_cuda::host_synchronizations();
    torch_fill(t, i + 1);
    const tensor own = ferry::from_torch(t) + 1;
    CHECK(fake_cuda::host_synchronizations() == waits);
    CHECK(all_are(own, i + 2));
  }
}

TEST_CASE("memory that libtorch releases is used again after its work") {
  const newest_first order;
  const c10::StreamGuard torch_side(fake_streams::instance().make(1));
  const ferry::stream side = ferry::pool_stream(gpu(1));
  const ferry::stream_guard on(side);
  fake_cuda::drain();
  const std::size_t before = fake_cuda::blocks_in_use(1);
  {
    const at::Tensor copy = torch_memory(1);
    for (int i = 0; i != 20; ++i) {
      {
        const at::Tensor t = ferry::to_torch(ferry::full({1000}, i + 1, dtype::f32, gpu(1)));
        torch_copy(copy, t);
      }
      // Takes the block that was released, if it is free already.
      const tensor next = ferry::full({1000}, -1, dtype::f32, gpu(1));
      CHECK(all_are(ferry::from_torch(copy), i + 1));
    }
  }
  fake_cuda::drain();
  CHECK(fake_cuda::blocks_in_use(1) == before);
}

TEST_CASE("handlers get and return tensors on devices in the order of libtorch's streams") {
  const newest_first order;
  ferry_test::cluster group(
      2, {.configure = [](ferry::worker_config& config) {
        config.set_device_map(config.name == "worker0" ? "worker1" : "worker0", {{gpu(1), gpu(1)}});
      }});
  const c10::StreamGuard torch_side(fake_streams::instance().make(1));
  const at::Tensor t = torch_memory(1);
  for (int i = 0; i != 10; ++i) {
    torch_fill(t, i);
    const at::Tensor result = group[0].rpc_sync<plus_one_on_device>("worker1", t);
    ferry::let_torch_wait(gpu(1));
    const at::Tensor copy = torch_memory(1);
    torch_copy(copy, result);
    CHECK(all_are(ferry::from_torch(copy), i + 1));
  }
}

namespace {

// A function whose formula is work on libtorch's current stream of the moment.
struct on_device : torch::autograd::Function<on_device> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    at::Tensor result = torch_memory(x.device().index());
    torch_copy(result, x);
    return result;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    backward_on.push_back(torch_current(gradients.at(0).device().index()));
    const at::Tensor result = torch_memory(gradients[0].device().index());
    torch_copy(result, gradients[0]);
    const ferry::stream_guard on(torch_current(result.device().index()));
    ferry::mul_(raw(result), 2);
    return {result};
  }
  static inline std::vector<ferry::stream> backward_on;
};

}  // namespace

TEST_CASE("a formula runs on the stream of its operation, between the gradients before and after it") {
  const newest_first order;
  const at::Tensor leaf = torch_memory(1);
  leaf.requires_grad_();
  const c10::Stream forward = fake_streams::instance().make(1);
  at::Tensor y;
  {
    const c10::StreamGuard on(forward);
    y = on_device::apply(on_device::apply(leaf));
  }
  on_device::backward_on.clear();
  const ferry::held_edge edge = ferry::gradient_edge_of(ferry::from_torch(y));
  CHECK(edge.edge.to.engine().on(edge.edge.to.node()).device() == gpu(1));
  leaf_sums sums;
  {
    // As a pass does: on the stream that the node names.
    const ferry::stream_guard on(edge.edge.to.engine().on(edge.edge.to.node()));
    seam_pass().run({{edge.edge, ferry::full({1000}, 3, dtype::f32, gpu(1))}}, sums);
    REQUIRE(sums.size() == 1);
    CHECK(all_are(sums.begin()->second.sum.dense, 12));
  }
  CHECK((on_device::backward_on == std::vector(2, as_ferry(forward))));
}

namespace {

// Its graph is ferry's on the way: this libtorch has no kernels for devices.
struct scale_on_device : torch::nn::Module {
  explicit scale_on_device(int index, double value)
      : weight(register_parameter("weight", ferry::to_torch(ferry::full({1000}, value, dtype::f32, gpu(index))))),
        unused(register_parameter("unused", ferry::to_torch(ferry::full({3}, value, dtype::f32, gpu(index))))),
        offset(register_buffer("offset", ferry::to_torch(ferry::full({1000}, value, dtype::f32, gpu(index))))) {}
  at::Tensor forward(const tensor& x) {
    return ferry::to_torch(ferry::from_torch(weight) * x + ferry::from_torch(offset));
  }
  at::Tensor weight;
  at::Tensor unused;
  at::Tensor offset;
};

}  // namespace

TEST_CASE(
    "torch_ddp: gradients of parameters on devices are averaged in contexts, in the order of libtorch's streams") {
  ferry_test::run_cluster(2, [](ferry::worker& self) {
    const ferry::process_group group(self);
    const int rank = group.rank();
    const c10::StreamGuard torch_side(fake_streams::instance().make(rank));
    ferry::torch_ddp model(scale_on_device(rank, rank + 1), group, {.find_unused = true});
    CHECK(all_are(ferry::detach(ferry::from_torch(model.module().weight)), 1));
    CHECK(all_are(ferry::from_torch(model.module().offset), 1));
    for (int round = 0; round != 5; ++round) {  // the double delays streams at random
      const ferry::dist_autograd::context pass(self);
      torch_fill(model.module().offset, round);
      const tensor y = ferry::from_torch(model(ferry::full({1000}, rank + 1, dtype::f32, gpu(rank))));
      CHECK(all_are(ferry::detach(y), rank + 1 + round));
      pass.backward(ferry::sum(y));
      const auto gradients = pass.gradients();
      const at::Tensor gradient = ferry::torch_gradient(gradients, model.module().weight);
      REQUIRE(gradient.defined());
      CHECK(gradient.device().index() == rank);
      CHECK(all_are(ferry::from_torch(gradient), 1.5));
      const at::Tensor none = ferry::torch_gradient(gradients, model.module().unused);
      REQUIRE(none.defined());
      CHECK(ferry::equal(ferry::from_torch(none).to(host), ferry::zeros({3})));
      self.barrier();
    }
  });
}

namespace {

struct only_weight : torch::nn::Module {
  explicit only_weight(int index) : weight(register_parameter("weight", torch_memory(index))) {}
  at::Tensor forward() { return weight; }
  at::Tensor weight;
};

}  // namespace

TEST_CASE("torch_ddp: gradients of parameters on devices are averaged outside of contexts, in the same order") {
  ferry_test::run_cluster(2, [](ferry::worker& self) {
    const ferry::process_group group(self);
    const int rank = group.rank();
    const c10::StreamGuard torch_side(fake_streams::instance().make(rank));
    ferry::torch_ddp model(only_weight(rank), group);
    const at::Tensor weight = model();
    const at::Tensor copy = torch_memory(rank);
    for (int round = 0; round != 5; ++round) {
      // As a pass of libtorch does, which needs kernels to run.
      weight.mutable_grad() = torch_memory(rank);
      torch_fill(weight.grad(), rank + round);
      for (const auto& hook : torch::autograd::impl::gradient_edge(weight).function->post_hooks()) (*hook)({}, {});
      CHECK(weight.grad().device().index() == rank);
      torch_copy(copy, weight.grad());
      CHECK(all_are(ferry::from_torch(copy), 0.5 + round));
    }
  });
}

}  // namespace libtorch_test

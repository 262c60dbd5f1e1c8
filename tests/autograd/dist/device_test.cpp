// Passes with devices, on the fake CUDA runtime, whose streams are late at random: everything is in stream order.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/device/current.hpp>
#include <ferry/device/stream.hpp>

#include "dist_test.hpp"
#include "fake_cuda.hpp"
#include "tests/rpc/devices/device_group.hpp"
#include "varied.hpp"

namespace device_test {

using namespace dist_test;
using device_calls::device_group;
using device_calls::gpu;
using device_calls::host;
using device_calls::map_to;
using device_calls::native_options;
using ferry::device_map;
using ferry_test::varied;

tensor on(ferry::device where, double seed, const ferry::dims& shape = {40, 50}) {
  return ferry::require_grad(varied(shape, seed).to(where));
}
tensor layer(const tensor& x, const tensor& w) { return ferry::tanh(ferry::matmul(x, w)); }

// A layer of a network on a device of its worker.
class network {
 public:
  network(int device, double seed) : weight_(on(gpu(device), seed, {50, 50})) {}
  tensor forward(const tensor& x) {
    CHECK(x.device() == weight_.device());
    return layer(x, weight_);
  }
  tensor gradient(dist::context_id id) {
    const auto found = dist::get_gradients(id);
    CHECK(found.at(weight_).device() == weight_.device());
    return found.at(weight_);  // read on this thread's current stream
  }

 private:
  tensor weight_;
};

struct fails : ferry::function<fails> {
  static constexpr std::string_view name = "fails";
  struct saved {};
  static tensor forward(saved&, const tensor& x) { return x * 1.0; }
  static tensor backward(const saved&, const tensor&) { throw std::domain_error("simulated"); }
};

bool close(const tensor& a, const tensor& b) { return ferry::allclose(a.to(host), b.to(host), 1e-9, 1e-12); }

TEST_CASE("[row 282] a graph on a device, without calls, and with one to oneself") {
  device_group group({map_to("worker0", {{gpu(0), gpu(1)}, {gpu(1), gpu(0)}})});
  const tensor a = on(gpu(0), 1);
  const tensor b = on(gpu(0), 2);
  {
    const dist::context context(group[0]);
    context.backward(ferry::sum(a * b * 2.0));
    CHECK(close(context.gradients().at(a), ferry::detach(b) * 2.0));
    CHECK(context.gradients().at(a).device() == gpu(0));
  }
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<mul>("worker0", a, b);
  context.backward(ferry::sum(c.to(host)));
  CHECK(close(context.gradients().at(a), ferry::detach(b)));
  CHECK(close(context.gradients().at(b), ferry::detach(a)));
}

TEST_CASE("[row 232] ten rounds with large inputs through a device map: gradients equal those of one worker") {
  device_group group({map_to("worker1", {{gpu(0), gpu(1)}}), {}});
  for (int round = 0; round != 10; ++round) {
    const tensor a = on(gpu(0), round, {100, 1000});
    const tensor b = on(gpu(0), round + 0.5, {100, 1000});
    const dist::context context(group[0]);
    const tensor c = group[0].rpc_sync<mul>("worker1", a, b);
    CHECK(c.device() == gpu(0));
    context.backward(ferry::sum(c * a));
    ferry::backward(ferry::sum(a * b * a));
    const auto found = context.gradients();
    CHECK(close(found.at(a), ferry::grad(a)));
    CHECK(close(found.at(b), ferry::grad(b)));
    CHECK(found.at(a).device() == gpu(0));
  }
}

TEST_CASE("[row 233] layers on devices of three workers: gradients that are asked for right after the pass are whole") {
  // worker0: cuda:0. worker1: cuda:1. worker2: cuda:2 and 3.
  device_group group({
      [](native_options& options) {
        options.set_device_map("worker1", {{gpu(0), gpu(1)}});
        options.set_device_map("worker2", {{gpu(0), gpu(3)}});
      },
      {},
      {},
  });
  const auto first = group[0].remote<ferry::make<network>>("worker1", 1, 1.);
  const auto second = group[0].remote<ferry::make<network>>("worker2", 3, 2.);
  for (int round = 0; round != 10; ++round) {
    const tensor x = on(gpu(0), round + 0.25);
    const tensor w1 = on(gpu(0), 1., {50, 50});
    const tensor w2 = on(gpu(0), 2., {50, 50});
    const dist::context context(group[0]);
    const tensor y = second.rpc_sync<&network::forward>(first.rpc_sync<&network::forward>(x));
    context.backward(ferry::sum(y * y));
    auto g1 = first.rpc_async<&network::gradient>(context.id());
    auto g2 = second.rpc_async<&network::gradient>(context.id());
    const tensor gx = context.gradients().at(x);
    const tensor own = layer(layer(x, w1), w2);
    ferry::backward(ferry::sum(own * own));
    CHECK(close(gx, ferry::grad(x)));
    CHECK(close(g1.get(), ferry::grad(w1)));
    CHECK(close(g2.get(), ferry::grad(w2)));
  }
}

TEST_CASE("gradients of tensors that a device map led to another kind of device come back to where these are") {
  device_group group({map_to("worker1", {{gpu(0), host}}), {}});
  const tensor a = on(gpu(0), 1);
  const tensor b = on(host, 2);
  const dist::context context(group[0]);
  const tensor c = group[0].rpc_sync<mul>("worker1", a, b);
  context.backward(ferry::sum(c.to(host)));
  CHECK(context.gradients().at(a).device() == gpu(0));
  CHECK(context.gradients().at(b).device() == host);
  CHECK(close(context.gradients().at(a), ferry::detach(b)));
  CHECK(close(context.gradients().at(b), ferry::detach(a)));
}

TEST_CASE("what a pass has added before it fails is there for streams that read it afterwards") {
  device_group group({map_to("worker0", {{gpu(0), gpu(0)}})});
  fake_cuda::set_schedule(fake_cuda::schedule::newest_first);
  const tensor a = on(gpu(0), 1);
  const tensor b = ferry::require_grad(ferry::tensor_of({1., 2.}));
  const dist::context context(group[0]);
  const tensor last = ferry::sum(fails::apply(b));  // the graph is gone through from its end
  const tensor first = ferry::sum(a * 2.0);
  fake_cuda::drain();
  tensor read;
  {
    const fake_cuda::pause pause;
    CHECK_THROWS(context.backward(std::vector<tensor>{first, last}));
    const ferry::stream_guard elsewhere(ferry::pool_stream(gpu(0)));
    read = ferry::detach(context.gradients().at(a)) * 1.0;
  }
  fake_cuda::drain();
  fake_cuda::set_schedule(fake_cuda::schedule::random);
  CHECK(close(read, ferry::full({40, 50}, 2.0, ferry::dtype::f64)));
}

TEST_CASE("a graph that changes between the CPU and devices") {
  device_group group({map_to("worker1", {{gpu(0), gpu(2)}}), {}});
  const tensor a = leaf(varied({30}, 1));
  const dist::context context(group[0]);
  const tensor b = group[0].rpc_sync<mul>("worker1", a.to(gpu(0)), a.to(gpu(0)) * 3.0);
  const tensor c = group[0].rpc_sync<mul>("worker1", b.to(host), a);
  context.backward(ferry::sum(c));
  ferry::backward(ferry::sum(a * (a * 3.0) * a));
  CHECK(close(context.gradients().at(a), ferry::grad(a)));
  CHECK(context.gradients().at(a).device() == host);
}

TEST_CASE("the caller's streams wait for the gradients, on other streams than those of the way forward") {
  device_group group({map_to("worker1", {{gpu(0), gpu(1)}}), {}});
  for (int round = 0; round != 10; ++round) {
    const tensor a = on(gpu(0), round);
    const dist::context context(group[0]);
    tensor c;
    const ferry::stream forward = ferry::pool_stream(gpu(0));
    forward.wait(ferry::current_stream(gpu(0)));
    {
      const ferry::stream_guard on_forward(forward);
      c = ferry::sum(group[0].rpc_sync<mul>("worker1", a, a));
    }
    const ferry::stream back = ferry::pool_stream(gpu(0));
    const ferry::stream_guard on_back(back);
    back.wait(forward);
    context.backward(c, {.retain_graph = true});
    CHECK(close(context.gradients().at(a), ferry::detach(a) * 2.0));
    // Without blocking: gradients() waits on the device.
    dist::backward_async(context, c).get();
    CHECK(close(context.gradients().at(a), ferry::detach(a) * 4.0));
  }
}

TEST_CASE("[row 224] futures of sparse tensors on devices: alone, in containers, and in the gradients of a context") {
  device_group group({map_to("worker1", {{gpu(0), gpu(1)}}), {}});
  constexpr ferry::embedding_options as_rows{.sparse_gradient = true};
  const tensor weight = on(gpu(0), 1, {6, 3});
  const tensor indices = ferry::tensor_of<std::int64_t>({1, 1, 4}).to(gpu(0));
  for (int round = 1; round != 4; ++round) {
    const dist::context context(group[0]);
    context.backward(ferry::sum(group[0].rpc_sync<twice>("worker1", ferry::embedding(weight, indices, as_rows))));
    const auto found = context.gradients();
    REQUIRE(found.find(weight));
    const ferry::sparse_tensor rows = found.find(weight)->rows;
    REQUIRE(rows.defined());
    CHECK(rows.device() == gpu(0));
    ferry::promise<ferry::sparse_tensor> one;
    ferry::promise<std::vector<ferry::sparse_tensor>> several;
    one.set_value(ferry::mul(rows, 2));
    several.set_value(std::vector<ferry::sparse_tensor>{ferry::mul(rows, 3), rows});
    // On another stream, which has to wait.
    const ferry::stream_guard elsewhere(ferry::pool_stream(gpu(0)));
    const tensor expected = one.get_future().get().to_dense().to(host);
    CHECK(expected.select(0, 1).contiguous().data<double>()[0] == 8);
    CHECK(expected.select(0, 4).contiguous().data<double>()[2] == 4);
    CHECK(several.get_future().get().at(0).to_dense().to(host).select(0, 4).contiguous().data<double>()[0] == 6);
  }
}

}  // namespace device_test

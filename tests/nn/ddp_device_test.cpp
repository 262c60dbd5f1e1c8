// ddp with parameters on devices, on the fake CUDA runtime.

#include <ferry/nn/ddp.hpp>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/autograd.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>

#include "cluster.hpp"
#include "fake_nccl.hpp"

namespace ddp_device_test {

[[maybe_unused]] const bool has_nccl = [] {
  ferry::detail::use_nccl(&fake_nccl::functions());
  return true;
}();

using ferry::device;
using ferry::process_group;
using ferry::tensor;
using ferry::nn::ddp;

}  // namespace ddp_device_test
namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;

namespace ddp_device_test {

constexpr device host{};
constexpr int trainers = 2;

device gpu_of(int rank) { return {ferry::device_kind::cuda, static_cast<std::int16_t>(rank)}; }

nn::linear layer_of(std::uint64_t seed) {
  ferry::generator source(seed);
  return nn::linear(3, 3, {}, source);
}
tensor batch_of(int rank) {
  ferry::generator source(static_cast<std::uint64_t>(100 + rank));
  return ferry::randn({4, 3}, source);
}
tensor loss_of(const tensor& y) { return ferry::mean(y * y); }

// At the server, on its CPU.
const nn::linear& server_layer() {
  static const nn::linear layer = layer_of(50);
  return layer;
}
tensor remote_layer(const tensor& x) { return server_layer()(x); }

bool close(const tensor& a, const tensor& b) { return ferry::allclose(a.to(host), b.to(host), 1e-4, 1e-6); }

TEST_CASE("[row 301] ddp: remote layers on the CPU and averaged layers on devices in turn") {
  bool by_nccl = false;
  SUBCASE("staged") {}
  SUBCASE("by NCCL") { by_nccl = true; }
  fake_nccl::reset();
  // One process on the batches of all, on the CPU.
  nn::linear first = layer_of(1);
  nn::linear second = layer_of(2);
  const nn::linear between = layer_of(50);
  tensor sum;
  for (int rank = 0; rank != trainers; ++rank) {
    const tensor loss = loss_of(between(second(between(first(batch_of(rank))))));
    sum = sum.defined() ? sum + loss : loss;
  }
  ferry::backward(sum * (1.0 / trainers));

  ferry_test::run_cluster(trainers + 1, [&](ferry::worker& self) {
    const int rank = self.id().value;
    if (rank == trainers) return self.barrier();  // the server
    const process_group group(self, {"worker0", "worker1"}, {.nccl = by_nccl});
    const std::string server = ferry_test::worker_name(trainers);
    const device gpu = gpu_of(rank);
    const auto averaged = [&](std::uint64_t seed) {
      nn::linear layer = layer_of(seed + static_cast<std::uint64_t>(rank) * 10);  // that of rank 0 is taken
      nn::to(layer, gpu);
      return ddp(layer, group, {.bucket_bytes = 16, .first_bucket_bytes = 16});
    };
    auto before = averaged(1);
    auto after = averaged(2);
    for (int round = 0; round != 3; ++round) {  // the double delays streams at random
      const dist::context pass(self);
      tensor x = before(batch_of(rank).to(gpu));
      x = self.rpc_sync<remote_layer>(server, x.to(host));
      x = after(x.to(gpu));
      x = self.rpc_sync<remote_layer>(server, x.to(host));
      pass.backward(loss_of(x));
      const auto gradients = pass.gradients();
      const auto expect = [&](const ddp<nn::linear>& part, const nn::linear& alone) {
        const auto parameters = part.parameters();
        const auto expected = nn::parameters(alone);
        for (std::size_t i = 0; i != parameters.size(); ++i) {
          const tensor gradient = gradients.at(parameters[i]);
          CHECK(gradient.device() == gpu);
          CHECK(close(gradient, ferry::grad(expected[i])));
        }
      };
      expect(before, first);
      expect(after, second);
      self.barrier({"worker0", "worker1"});
    }
    // Outside of a context.
    for (int round = 0; round != 2; ++round) {
      ferry::backward(loss_of(before(batch_of(rank).to(gpu))));
      const tensor gradient = ferry::grad(before.module().weight);
      CHECK(gradient.device() == gpu);
      const tensor all = group.all_gather(gradient.to(host)).get();
      CHECK(ferry::equal(all.select(0, 0), all.select(0, 1)));
      for (const tensor& each : before.parameters()) ferry::set_grad(each, tensor());
    }
    self.barrier();
  });
  CHECK((fake_nccl::completed() != 0) == by_nccl);
  for (const std::string& each : fake_nccl::complaints()) FAIL_CHECK(each);
}

TEST_CASE("ddp: rows of tables on devices are averaged there") {
  ferry_test::run_cluster(trainers, [](ferry::worker& self) {
    const process_group group(self);
    const device gpu = gpu_of(group.rank());
    ferry::generator source(7);
    nn::embedding table(9, 4, {.sparse_gradient = true}, source);
    const nn::embedding alone = nn::clone(table);
    nn::to(table, gpu);
    ddp model(table, group);
    const auto indices_of = [](int rank) {
      return ferry::from_vector(std::vector<std::int64_t>{rank, 5, 5, 8 - rank});
    };
    tensor sum;
    for (int rank = 0; rank != trainers; ++rank) {
      const tensor loss = loss_of(alone(indices_of(rank)));
      sum = sum.defined() ? sum + loss : loss;
    }
    ferry::backward(sum * (1.0 / trainers));
    const tensor expected = ferry::sparse_grad(alone.weight).to_dense();
    for (int round = 0; round != 3; ++round) {  // the double delays streams at random
      ferry::set_grad(model.module().weight, tensor());
      ferry::backward(loss_of(model(indices_of(group.rank()).to(gpu))));
      REQUIRE(ferry::has_sparse_grad(model.module().weight));
      CHECK(ferry::sparse_grad(model.module().weight).device() == gpu);
      CHECK(close(ferry::sparse_grad(model.module().weight).to_dense(), expected));
      const dist::context pass(self);
      pass.backward(loss_of(model(indices_of(group.rank()).to(gpu))));
      const auto gradients = pass.gradients();
      const auto* found = gradients.find(model.module().weight);
      REQUIRE(found);
      REQUIRE(found->rows.defined());
      CHECK(close(found->rows.to_dense(), expected));
      self.barrier();
    }
  });
}

// A table that is looked up on one stream, and a weight that is used on another. The gradient of the table, which travels last, may
// come first.
struct on_two_streams {
  static constexpr bool sparse_gradient = true;
  struct scaled {
    tensor weight;
    template <class Visit>
    void visit_members(Visit&& visit) {
      visit("weight", weight);
    }
  };
  tensor table;
  scaled scale;
  ferry::stream first;
  ferry::stream second;
  bool table_last = false;
  std::vector<tensor> kept =
      {};  // the node of a leaf is of the stream on which it was used first, while something leads to it

  on_two_streams(device gpu, bool last)
      : first(ferry::pool_stream(gpu)), second(ferry::pool_stream(gpu)), table_last(last) {
    const ferry::stream_guard on_first(first);
    table = ferry::require_grad(ferry::ones({64, 64}).to(gpu));
    kept.push_back(table * 1.0);
    const ferry::stream_guard on_second(second);
    scale.weight = ferry::require_grad(ferry::ones({64}).to(gpu));
    kept.push_back(scale.weight * 1.0);
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("table", table);
    visit("scale", scale);
  }
  tensor operator()(const tensor& indices, const tensor& x) const {
    const ferry::stream now = ferry::current_stream(x.device());
    tensor looked_up;
    tensor scaled_x;
    const auto look_up = [&] {
      const ferry::stream_guard on(first);
      first.wait(now);
      looked_up = ferry::embedding(table, indices, {.sparse_gradient = true});
      for (int i = 0; i != 5; ++i) looked_up = looked_up * 1.0;
    };
    if (!table_last) look_up();
    {
      const ferry::stream_guard on(second);
      second.wait(now);
      scaled_x = x * scale.weight;
    }
    if (table_last) look_up();
    for (const ferry::stream& each : {first, second}) now.wait(each);
    for (const tensor& each : {looked_up, scaled_x}) each.storage().record_use(now);
    return scaled_x + looked_up;
  }
};

TEST_CASE("ddp: rows that come on one stream and travel on another are whole") {
  for (const bool table_last : {false, true}) {
    ferry_test::run_cluster(trainers, [&](ferry::worker& self) {
      const process_group group(self);
      const device gpu = gpu_of(group.rank());
      ddp model(on_two_streams(gpu, table_last), group);
      const on_two_streams& inside = model.module();
      const tensor x = ferry::ones({64, 64}).to(gpu);
      std::vector<std::int64_t> all(64);
      std::iota(all.begin(), all.end(), 0);
      const tensor indices = ferry::from_vector(all).to(gpu);
      for (int round = 0; round != 40; ++round) {  // the double delays streams at random
        for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
        ferry::backward(ferry::sum(model(indices, x) * (1.0 + round)));
        CHECK(close(ferry::sparse_grad(inside.table).to_dense(), ferry::full({64, 64}, 1.0 + round)));
        CHECK(close(ferry::grad(inside.scale.weight), ferry::full({64}, 64 * (1.0 + round))));
      }
      self.barrier();
    });
  }
}

TEST_CASE("ddp: a pass on devices that fails at one member fails at all, and the next one is right") {
  ferry_test::run_cluster(trainers, [](ferry::worker& self) {
    const process_group group(self, ferry::all_workers, {.limit = std::chrono::seconds(300)});
    const device gpu = gpu_of(group.rank());
    nn::linear layer = layer_of(1);
    nn::to(layer, gpu);
    ddp model(layer, group, {.bucket_bytes = 16, .first_bucket_bytes = 16});
    const tensor x = batch_of(group.rank()).to(gpu);
    for (int round = 0; round != 6; ++round) {
      for (const tensor& each : model.parameters()) ferry::set_grad(each, tensor());
      const tensor y = model(x);
      const bool fails = round % 2 == 0;
      // At rank 1 the first time before all buckets, then between two.
      ferry::gradient_hook hook;
      if (fails && group.rank() == 1) {
        const auto gives_up = [](const tensor&) -> tensor { throw std::runtime_error("the hook gave up"); };
        hook = round == 0 ? ferry::on_gradient(y, gives_up) : ferry::on_gradient(model.module().weight, gives_up);
      }
      std::string error;
      try {
        ferry::backward(loss_of(y));
      } catch (const std::exception& problem) {
        error = problem.what();
      }
      hook.remove();
      CHECK_MESSAGE((error.find("the hook gave up") != std::string::npos) == fails, error);
      if (fails) continue;
      const tensor all = group.all_gather(ferry::grad(model.module().weight).to(host)).get();
      CHECK(ferry::equal(all.select(0, 0), all.select(0, 1)));
      tensor sum;
      const nn::linear alone = layer_of(1);
      for (int rank = 0; rank != trainers; ++rank) {
        const tensor loss = loss_of(alone(batch_of(rank)));
        sum = sum.defined() ? sum + loss : loss;
      }
      ferry::backward(sum * (1.0 / trainers));
      CHECK(close(all.select(0, 0), ferry::grad(alone.weight)));
    }
    self.barrier();
  });
}

}  // namespace ddp_device_test

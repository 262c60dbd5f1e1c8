// torch_ddp: gradients equal to those of one process on the joined batch, by libtorch's passes and by those of contexts.

#include <ferry/adapters/libtorch.hpp>

#include "torch.hpp"

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>

#include "cluster.hpp"
#include "expect_error.hpp"

namespace libtorch_ddp_test {

using ferry::errc;
using ferry::process_group;
using ferry::tensor;
using ferry::torch_ddp;
using ferry_test::run_cluster;

}  // namespace libtorch_ddp_test
namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;

namespace libtorch_ddp_test {

struct network_impl : torch::nn::Module {
  network_impl()
      : first(register_module("first", torch::nn::Linear(3, 5))),
        second(register_module("second", torch::nn::Linear(5, 2))),
        calls(register_buffer("calls", torch::randint(1000, {2}, at::kLong))) {
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first;
  torch::nn::Linear second;
  at::Tensor calls;
};
TORCH_MODULE_IMPL(network, network_impl);

// Whose second layer may be left out; its outputs are in a tuple.
struct branching_impl : network_impl {
  std::tuple<int, std::vector<at::Tensor>> forward(const at::Tensor& x, bool both) {
    const at::Tensor y = torch::tanh(first(x));
    return {7, {both ? second(y) : y}};
  }
};
at::Tensor only(const std::tuple<int, std::vector<at::Tensor>>& output) { return std::get<1>(output).at(0); }

// A part of its graph is ferry's.
struct through_ferry_impl : network_impl {
  at::Tensor forward(const at::Tensor& x) { return second(ferry::to_torch(ferry::tanh(ferry::from_torch(first(x))))); }
};

struct tied_impl : torch::nn::Module {
  tied_impl() : one(register_module("one", torch::nn::Linear(3, 3))) {
    one->to(at::kDouble);
    register_parameter("same", one->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return one(x).matmul(one->weight); }
  torch::nn::Linear one;
};

struct table_impl : torch::nn::Module {
  table_impl() : rows(register_module("rows", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).sparse(true)))) {}
  at::Tensor forward(const at::Tensor& chosen) { return rows(chosen); }
  torch::nn::Embedding rows;
};

at::Tensor batch_of(int rank, int step) {
  return torch::sin(torch::arange(12, at::kDouble) * (1.0 + rank) + step).reshape({4, 3});
}
at::Tensor loss_of(const at::Tensor& y) { return y.pow(2).mean(); }
bool close(const at::Tensor& a, const at::Tensor& b) { return a.defined() && at::allclose(a, b, 1e-12, 1e-14); }

std::shared_ptr<network_impl> copy_of(const network_impl& like) {
  auto copy = std::make_shared<network_impl>();
  const at::NoGradGuard outside;
  const std::vector<at::Tensor> from = like.parameters();
  std::vector<at::Tensor> to = copy->parameters();
  for (std::size_t i = 0; i != to.size(); ++i) to[i].copy_(from[i]);
  return copy;
}
// The gradients of one process on the batches of all ranks, for a network with these parameters.
std::vector<at::Tensor> joined_gradients(const network_impl& like, int n, int step) {
  const auto alone = copy_of(like);
  at::Tensor sum;
  for (int rank = 0; rank != n; ++rank) {
    const at::Tensor loss = loss_of(alone->forward(batch_of(rank, step)));
    sum = sum.defined() ? sum + loss : loss;
  }
  return torch::autograd::grad({sum / n}, alone->parameters());
}
void check_gradients(const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& expected) {
  REQUIRE(parameters.size() == expected.size());
  for (std::size_t i = 0; i != parameters.size(); ++i) CHECK(close(parameters[i].grad(), expected[i]));
}
void check_gradients(const dist::context& in, const std::vector<at::Tensor>& parameters,
                     const std::vector<at::Tensor>& expected) {
  REQUIRE(parameters.size() == expected.size());
  const auto gradients = in.gradients();
  for (std::size_t i = 0; i != parameters.size(); ++i) {
    CHECK(close(ferry::torch_gradient(gradients, parameters[i]), expected[i]));
    CHECK_FALSE(parameters[i].grad().defined());
  }
}
void check_same_everywhere(const process_group& group, const at::Tensor& t) {
  const at::Tensor all = ferry::to_torch(group.all_gather(ferry::from_torch(t.detach())).get());
  for (int rank = 1; rank != group.size(); ++rank) CHECK(all[rank].equal(all[0]));
}
void backward(const dist::context& in, const at::Tensor& loss) { in.backward(ferry::from_torch(loss)); }

// At the server: a layer with a weight of its own.
at::Tensor& server_weight() {
  static at::Tensor weight = torch::full({3, 3}, 0.25, at::kDouble).requires_grad_();
  return weight;
}
at::Tensor remote_layer(const at::Tensor& x) { return x.matmul(server_weight()); }
at::Tensor server_gradient(dist::context_id id) {
  return ferry::torch_gradient(dist::get_gradients(id), server_weight());
}

TEST_CASE(
    "torch_ddp: what rank 0 has everywhere, gradients of the joined batch over steps of an optimizer, in one bucket "
    "and "
    "several, in place and anew") {
  for (const int n : {2, 3}) {
    run_cluster(n, [n](ferry::worker& self) {
      const process_group group(self);
      for (const auto& [bytes, anew] : {std::pair{std::size_t{1} << 20U, false}, std::pair{std::size_t{64}, true}}) {
        torch_ddp model(network(), group, {.bucket_bytes = bytes, .first_bucket_bytes = bytes});
        torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
        check_same_everywhere(group, model.module()->calls);
        const void* memory = nullptr;
        for (int step = 0; step != 4; ++step) {
          const auto expected = joined_gradients(*model.module(), n, step);
          model.module()->zero_grad(anew);
          loss_of(model(batch_of(group.rank(), step))).backward();
          check_gradients(model.parameters(), expected);
          const void* const now = model.parameters()[0].grad().data_ptr();
          CHECK((step == 0 || now == memory));  // views of buckets
          memory = now;
          optimizer.step();
        }
        for (const at::Tensor& each : model.parameters()) check_same_everywhere(group, each);
      }
    });
  }
}

TEST_CASE("torch_ddp: gradients of a pass in a context equal those of a local pass, and stay in the context") {
  for (const int n : {2, 3}) {
    run_cluster(n, [n](ferry::worker& self) {
      const process_group group(self);
      torch_ddp model(std::make_shared<network_impl>(), group, {.bucket_bytes = 64, .first_bucket_bytes = 64});
      const auto expected = joined_gradients(*model.module(), n, 0);
      for (int round = 0; round != 2; ++round) {
        const dist::context pass(self);
        backward(pass, loss_of(model.forward(batch_of(group.rank(), 0))));
        check_gradients(pass, model.parameters(), expected);
        self.barrier();
      }
      loss_of(model(batch_of(group.rank(), 0))).backward();
      check_gradients(model.parameters(), expected);
      self.barrier();
    });
  }
}

TEST_CASE("torch_ddp: a layer of another worker before it keeps gradients of its own") {
  run_cluster(3, [](ferry::worker& self) {
    const int rank = self.id().value;
    if (rank == 2) return self.barrier();  // the server; its gradients are per context
    const process_group trainers(self, {"worker0", "worker1"});
    torch_ddp model(network(), trainers);
    {
      const dist::context pass(self);
      const at::Tensor hidden = self.rpc_sync<remote_layer>("worker2", batch_of(rank, 0));
      backward(pass, loss_of(model(hidden)));
      const auto gradients = pass.gradients();
      for (const at::Tensor& each : model.parameters()) {
        check_same_everywhere(trainers, ferry::torch_gradient(gradients, each));
      }
      const at::Tensor weight = torch::full({3, 3}, 0.25, at::kDouble).requires_grad_();
      const at::Tensor alone = loss_of(copy_of(*model.module())->forward(batch_of(rank, 0).matmul(weight)));
      CHECK(close(self.rpc_sync<server_gradient>("worker2", pass.id()), torch::autograd::grad({alone}, {weight})[0]));
    }
    self.barrier();
  });
}

TEST_CASE("torch_ddp: without synchronisation gradients add up, and the next pass averages the sum") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    torch_ddp model(network(), group);
    {
      const auto alone = model.no_sync();
      loss_of(model(batch_of(group.rank(), 0))).backward();
    }
    loss_of(model(batch_of(group.rank(), 1))).backward();
    auto expected = joined_gradients(*model.module(), 2, 0);
    const auto second = joined_gradients(*model.module(), 2, 1);
    for (std::size_t i = 0; i != expected.size(); ++i) expected[i] += second[i];
    check_gradients(model.parameters(), expected);
  });
}

TEST_CASE("torch_ddp: parameters without a gradient are named with the remedy, or found and averaged with zeros") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    {
      torch_ddp model(branching_impl(), group);
      loss_of(only(model(batch_of(group.rank(), 0), false))).backward();
      expect_error(errc::invalid_argument, "second.weight, second.bias",
                   [&] { (void)model(batch_of(group.rank(), 0), true); });
      model.module().zero_grad();
      loss_of(only(model(batch_of(group.rank(), 0), true))).backward();  // it goes on
      check_gradients(model.parameters(), joined_gradients(model.module(), 2, 0));
    }
    torch_ddp model(branching_impl(), group, {.find_unused = true});
    const at::Tensor weight = model.module().second->weight;
    const at::Tensor half = joined_gradients(model.module(), 1, 0)[2] / 2;  // that of rank 0, and zeros
    const bool both = group.rank() == 0;
    loss_of(only(model(batch_of(0, 0), both))).backward();
    CHECK(close(weight.grad(), half));
    model.module().zero_grad();
    for (int round = 0; round != 2; ++round) {
      const dist::context pass(self);
      backward(pass, loss_of(only(model(batch_of(0, 0), both))));
      CHECK(close(ferry::torch_gradient(pass.gradients(), weight), half));
      self.barrier();
    }
  });
}

TEST_CASE("torch_ddp: parameters behind a part of the graph that is ferry's are found to be used") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    torch_ddp model(std::make_shared<through_ferry_impl>(), group, {.find_unused = true});
    const auto expected = joined_gradients(*model.module(), 2, 0);
    const dist::context pass(self);
    backward(pass, loss_of(model(batch_of(group.rank(), 0))));
    check_gradients(pass, model.parameters(), expected);
    self.barrier();
  });
}

TEST_CASE("torch_ddp: modules whose parameters or buffers differ are refused on every member") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    const int size = 2 + group.rank();
    expect_error(errc::group_mismatch, "differ", [&] { (void)torch_ddp(torch::nn::Linear(2, size), group); });
    expect_error(errc::group_mismatch, "differ", [&] {
      (void)torch_ddp(torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(2).track_running_stats(size == 2)), group);
    });
    torch::nn::Linear frozen(2, 2);
    for (at::Tensor& each : frozen->parameters()) each.requires_grad_(false);
    expect_error(errc::invalid_argument, "no parameter", [&] { (void)torch_ddp(frozen, group); });
  });
}

TEST_CASE("torch_ddp: members with fewer batches join, and end with equal parameters and buffers") {
  for (const bool in_context : {false, true}) {
    run_cluster(3, [&](ferry::worker& self) {
      const process_group group(self);
      torch_ddp model(network(), group);
      torch::optim::SGD optimizer(model.parameters(), 0.1);
      int passes = 0;
      model.join([&] {
        for (int step = 0; step != 2 + group.rank(); ++step, ++passes) {
          optimizer.zero_grad();
          model.module()->calls.fill_(group.rank());
          if (in_context) {
            const dist::context pass(self);
            backward(pass, loss_of(model(batch_of(group.rank(), step))));
            const auto gradients = pass.gradients();
            for (const at::Tensor& each : model.parameters()) {
              each.mutable_grad() = ferry::torch_gradient(gradients, each).clone();
            }
          } else {
            loss_of(model(batch_of(group.rank(), step))).backward();
          }
          if (step == 3) {  // only rank 2 is left: its gradient, and zeros
            const auto own = copy_of(*model.module());
            loss_of(own->forward(batch_of(2, step))).backward();
            CHECK(close(model.module()->first->weight.grad(), own->first->weight.grad() / 3));
          }
          optimizer.step();
        }
      });
      CHECK(passes == 2 + group.rank());
      for (const at::Tensor& each : model.parameters()) check_same_everywhere(group, each);
      CHECK(model.module()->calls.equal(torch::full({2}, 2, at::kLong)));
    });
  }
}

TEST_CASE("torch_ddp: gradients that travel as bf16; a transport that fails ends the pass, and the next one goes on") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    {
      torch_ddp model(network(), group, {.transport = nn::average_as_bf16()});
      loss_of(model(batch_of(group.rank(), 0))).backward();
      const auto expected = joined_gradients(*model.module(), 2, 0);
      for (std::size_t i = 0; i != expected.size(); ++i) {
        const at::Tensor gradient = model.parameters()[i].grad();
        CHECK(at::allclose(gradient, expected[i], 0.05, 0.01));
        CHECK_FALSE(gradient.equal(expected[i]));
      }
    }
    bool fails = true;
    torch_ddp model(network(), group,
                    {.transport = [&](const process_group& over, const tensor& bucket, ferry::timeout limit) {
                      if (fails) throw ferry::error(errc::resource_exhausted, "no such transport today");
                      return nn::average_in_place()(over, bucket, limit);
                    }});
    expect_error(errc::resource_exhausted, "no such transport today",
                 [&] { loss_of(model(batch_of(group.rank(), 0))).backward(); });
    fails = false;
    model.module()->zero_grad();
    loss_of(model(batch_of(group.rank(), 0))).backward();
    check_gradients(model.parameters(), joined_gradients(*model.module(), 2, 0));
  });
}

TEST_CASE("torch_ddp: sparse gradients are refused in words") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    torch_ddp model(std::make_shared<table_impl>(), group);
    const at::Tensor chosen = at::tensor({1, 2}, at::kLong);
    expect_error(errc::invalid_argument, "the gradient of rows.weight is sparse",
                 [&] { model(chosen).sum().backward(); });
    {
      const dist::context pass(self);
      expect_error(errc::invalid_argument, "the gradient of rows.weight is sparse",
                   [&] { backward(pass, model(chosen).sum()); });
    }
    self.barrier();
  });
}

TEST_CASE("torch_ddp: a parameter under two names, one that is not contiguous, and f32") {
  run_cluster(2, [](ferry::worker& self) {
    const process_group group(self);
    {
      torch_ddp model(std::make_shared<tied_impl>(), group);
      loss_of(model(batch_of(group.rank(), 0))).backward();
      const at::Tensor weight = model.module()->one->weight.detach().requires_grad_();
      const at::Tensor bias = model.module()->one->bias.detach();
      at::Tensor sum = torch::zeros({}, at::kDouble);
      for (int rank = 0; rank != 2; ++rank) {
        sum = sum + loss_of(at::linear(batch_of(rank, 0), weight, bias).matmul(weight)) / 2;
      }
      CHECK(close(model.module()->one->weight.grad(), torch::autograd::grad({sum}, {weight})[0]));
    }
    torch::nn::Conv2d layer(torch::nn::Conv2dOptions(3, 4, 2));
    layer->weight.set_data(layer->weight.contiguous(at::MemoryFormat::ChannelsLast));
    torch_ddp model(layer, group);
    REQUIRE_FALSE(layer->weight.is_contiguous());
    check_same_everywhere(group, layer->weight);
    const at::Tensor x = torch::sin(torch::arange(2 * 3 * 5 * 5) * (1.0 + group.rank())).reshape({2, 3, 5, 5});
    for (int round = 0; round != 2; ++round) {
      layer->zero_grad(round == 0);
      const at::Tensor own = torch::autograd::grad({layer(x).pow(2).mean()}, {layer->weight})[0];
      const at::Tensor all = ferry::to_torch(group.all_gather(ferry::from_torch(own)).get());
      model(x).pow(2).mean().backward();
      CHECK(at::allclose(layer->weight.grad(), all.mean(0)));
      CHECK(layer->weight.grad().strides() == layer->weight.strides());
    }
  });
}

}  // namespace libtorch_ddp_test

// Modules of libtorch in remote_module.

#if __has_include(<ferry/nn/remote_module.hpp>)

  #include <ferry/adapters/libtorch.hpp>

  #include "torch.hpp"

  #include <memory>
  #include <vector>

  #include <doctest/doctest.h>

  #include <ferry/nn/remote_module.hpp>

  #include "cluster.hpp"

namespace libtorch_remote_module_test {

struct net_impl : torch::nn::Module {
  explicit net_impl(int width)
      : layer(register_module("layer", torch::nn::Linear(width, width))),
        drop(register_module("drop", torch::nn::Dropout(0.5))) {}
  at::Tensor forward(const at::Tensor& x) { return drop->forward(layer->forward(x)); }
  torch::nn::Linear layer;
  torch::nn::Dropout drop;
};
TORCH_MODULE_IMPL(net, net_impl);
std::vector<at::Tensor> parameters_of(const net& m) { return m->parameters(); }

static_assert(ferry::remotable_module<net> && ferry::remotable_module<std::shared_ptr<net_impl>>);

TEST_CASE("a remote_module may be a module of libtorch") {
  ferry_test::cluster group(2);
  const ferry::remote_module<net> there(group[0], "worker1/cpu", 4);
  there.eval();
  const at::Tensor x = at::rand({3, 4});
  const std::vector<at::Tensor> own = there.module_rref().rpc_sync<&parameters_of>();
  CHECK(at::allclose(there.forward(x), at::linear(x, own[0], own[1])));
  const std::vector<ferry::rref<ferry::tensor>> parameters = there.remote_parameters();
  REQUIRE(parameters.size() == 2);
  ferry::distributed_torch_optimizer<torch::optim::SGD> optimizer(parameters, torch::optim::SGDOptions(1));
  {
    const ferry::dist_autograd::context pass(group[0]);
    ferry::dist_autograd::backward(pass, ferry::from_torch(there.forward_async(x).get().sum()));
    optimizer.step(pass);
  }
  const std::vector<at::Tensor> stepped = there.module_rref().rpc_sync<&parameters_of>();
  CHECK(at::allclose(stepped[0], own[0] - x.sum(0).expand({4, 4})));
  CHECK(at::allclose(stepped[1], own[1] - 3));
  there.train();
  CHECK_FALSE(at::allclose(there.forward(at::ones({50, 4})), there.forward(at::ones({50, 4}))));
}

#endif

}  // namespace libtorch_remote_module_test

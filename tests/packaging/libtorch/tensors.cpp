// A tensor of libtorch goes to a worker, which is this one, and back.

#include <torch/types.h>

#include <ferry/adapters/libtorch/engine.hpp>
#include <ferry/ferry.hpp>

#include <iostream>

at::Tensor twice(const at::Tensor& t) { return t * 2; }

int main() {
  ferry::worker self = ferry::init_rpc();
  at::Tensor w = torch::ones({3}).requires_grad_();
  {
    const ferry::dist_autograd::context pass;
    const at::Tensor y = ferry::rpc_sync<twice>("worker0", w);
    pass.backward(ferry::from_torch((y * 2).sum()));
    std::cout << ferry::torch_gradient(pass.gradients(), w).sum().item<float>() << "\n";
  }
  self.shutdown();
}

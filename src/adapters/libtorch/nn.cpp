#include <ferry/adapters/libtorch/nn.hpp>

namespace ferry::inline v0::detail {

std::vector<tensor> parameters_of_torch(const torch::nn::Module& m) {
  std::vector<tensor> all;
  for (const at::Tensor& each : m.parameters()) {
    if (each.requires_grad()) all.push_back(from_torch(each));
  }
  return all;
}

void move_torch_module(torch::nn::Module& m, device where) { m.to(to_torch(where)); }

}  // namespace ferry::inline v0::detail

// A network of libtorch, half of whose layers are on another worker, learns to read handwritten digits.
//   ferry-run -n 2 ./18_torch_halves digits.csv

#include <torch/torch.h>

#include <ferry/adapters/libtorch.hpp>
#include <ferry/ferry.hpp>
#include <ferry/optim/schedule.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <vector>

#include "../14_digits/digits.hpp"

constexpr int epochs = 15;
constexpr std::int64_t batch = 32;

// The layers next to the points, at worker 1.
struct lower_half : torch::nn::Module {
  explicit lower_half(int width)
      : first(register_module("first", torch::nn::Linear(64, width))),
        second(register_module("second", torch::nn::Linear(width, width))) {}
  at::Tensor forward(const at::Tensor& points) { return second(first(points).relu()).relu(); }
  torch::nn::Linear first, second;
};

// The others, at worker 0.
struct upper_half : torch::nn::Module {
  explicit upper_half(int width)
      : drop(register_module("drop", torch::nn::Dropout(0.4))),
        out(register_module("out", torch::nn::Linear(width, 10))) {}
  at::Tensor forward(const at::Tensor& hidden) { return out(drop(hidden)); }
  torch::nn::Dropout drop;
  torch::nn::Linear out;
};

void seed(std::int64_t number) { torch::manual_seed(number); }

double accuracy(const ferry::rref<lower_half>& lower, upper_half& upper, const at::Tensor& points,
                const at::Tensor& digits) {
  upper.eval();
  const at::NoGradGuard outside;
  const at::Tensor logits = upper.forward(lower.rpc_sync<&lower_half::forward>(points));
  upper.train();
  return logits.argmax(1).eq(digits).to(at::kDouble).mean().item<double>();
}

void train(const char* data) {
  const digits_file file(data);
  // The same memory, seen by libtorch.
  const at::Tensor points = ferry::to_torch(file.training.points);
  const at::Tensor digits = ferry::to_torch(file.training.digits);

  ferry::rpc_sync<seed>("worker1", std::int64_t{1});
  seed(2);
  const ferry::rref<lower_half> lower = ferry::remote<ferry::make<lower_half>>("worker1", 128);
  upper_half upper(128);
  std::vector<ferry::rref<ferry::tensor>> parameters = ferry::torch_parameters(lower);
  for (const at::Tensor& each : upper.parameters()) parameters.emplace_back(ferry::from_torch(each));
  ferry::distributed_torch_optimizer<torch::optim::Adam> optimizer(parameters, torch::optim::AdamOptions(0.01));

  double reached = 0;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    optimizer.set_lr(0.01 * ferry::cosine_decay(epoch - 1, epochs));
    double loss_sum = 0;
    for (const at::Tensor& chosen : at::randperm(points.size(0)).split(batch)) {
      const ferry::dist_autograd::context pass;
      const at::Tensor hidden = lower.rpc_sync<&lower_half::forward>(points.index_select(0, chosen));
      const at::Tensor loss = torch::cross_entropy_loss(upper.forward(hidden), digits.index_select(0, chosen));
      pass.backward(ferry::from_torch(loss));
      optimizer.step(pass);
      loss_sum += loss.item<double>() * static_cast<double>(chosen.numel());
    }
    reached = accuracy(lower, upper, ferry::to_torch(file.held_out.points), ferry::to_torch(file.held_out.digits));
    std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%\n", epoch, loss_sum / static_cast<double>(points.size(0)),
                100 * reached);
    std::fflush(stdout);
  }
  if (reached < 0.95) throw std::runtime_error("less than 95 % of the digits that were held out are recognised");
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: ferry-run -n 2 18_torch_halves DIGITS.csv\n");
    return 2;
  }
  try {
    torch::set_num_threads(1);  // these matrices are small
    ferry::worker self = ferry::init_rpc();
    if (self.id().value == 0) train(arguments[1]);
    self.shutdown();
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "18_torch_halves: %s\n", problem.what());
    return 1;
  }
  return 0;
}

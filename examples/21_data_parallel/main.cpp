// Several trainers with a copy of a network each read handwritten digits: each has a share of them.
//
//     ferry-run -n 3 ./21_data_parallel digits.csv

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>

#include "../14_digits/digits.hpp"

using ferry::tensor;

constexpr int epochs = 20;
constexpr std::int64_t batch = 32;  // of all trainers together

struct classifier {
  ferry::nn::linear hidden{64, 128};
  ferry::nn::linear out{128, 10};

  tensor operator()(const tensor& points) const { return out(ferry::relu(hidden(points))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
    visit("out", out);
  }
};

// Every trainer runs this.
bool train(const char* data) {
  const digits_file file(data);
  const ferry::process_group trainers(ferry::all_workers);
  ferry::nn::ddp model(classifier(), trainers);  // with the parameters of rank 0
  ferry::optimizer<ferry::adam> optimizer(model.parameters());

  double accuracy = 0;
  for (int epoch = 0; epoch != epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.set_lr(0.01 * ferry::cosine_decay(epoch, epochs));
    const tensor loss_sum = ferry::zeros({1});
    const std::int64_t steps = file.training.digits.numel() / batch;  // the same for every trainer
    for (std::int64_t step = 0; step != steps; ++step) {
      const std::int64_t begin_share = step * batch + trainers.rank() * batch / trainers.size();
      const std::int64_t end_share = step * batch + (trainers.rank() + 1) * batch / trainers.size();
      optimizer.zero_grad();
      const tensor logits = model(file.training.points.slice(0, begin_share, end_share));
      const tensor loss = ferry::cross_entropy(logits, file.training.digits.slice(0, begin_share, end_share));
      ferry::backward(loss);  // the gradients are averages when it returns
      optimizer.step();
      loss_sum.at<float>(0) += ferry::detach(loss).item<float>() / static_cast<float>(steps);
    }
    trainers.all_reduce(loss_sum, ferry::reduce_op::avg).get();
    const ferry::no_grad outside;
    const tensor seen = ferry::argmax(model.module()(file.held_out.points), 1);
    accuracy = ferry::mean(ferry::eq(seen, file.held_out.digits).to(ferry::dtype::f64)).item<double>();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (trainers.rank() == 0) {
      std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%  %4.0f ms\n", epoch + 1,
                  static_cast<double>(loss_sum.at<float>(0)), 100 * accuracy, took.count());
      std::fflush(stdout);
    }
  }
  if (accuracy < 0.95) std::fprintf(stderr, "less than 95 %% of the digits that were held out are recognised\n");
  return accuracy >= 0.95;
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: 21_data_parallel DIGITS.csv\n");
    return 2;
  }
  try {
    ferry::worker self = ferry::init_rpc();
    const bool right = train(arguments[1]);
    self.shutdown();
    return right ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "21_data_parallel: %s\n", problem.what());
    return 1;
  }
}

// A network in two halves on two workers, and batches that pass through both in pieces.   ferry-run -n 3 ./17_split_network digits.csv

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/generator.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "../14_digits/digits.hpp"

using ferry::tensor;

constexpr int epochs = 20;
constexpr std::int64_t batch = 64, micro_batch = 16;

// A layer that begins at random, by its seed.
ferry::nn::linear layer(std::int64_t in, std::int64_t out, std::uint64_t seed) {
  ferry::generator random(seed);
  return {in, out, {}, random};
}

// On worker 2.
struct back_half {
  ferry::nn::linear hidden = layer(128, 64, 2);
  ferry::nn::linear out = layer(64, 10, 3);

  tensor operator()(const tensor& x) const { return out(ferry::relu(hidden(x))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
    visit("out", out);
  }
};

// On worker 1. It hands on what it has computed, and takes the next piece while worker 2 works on this one: it holds no thread.
struct front_half {
  ferry::nn::linear hidden = layer(64, 128, 1);
  ferry::remote_module<back_half> rest;

  explicit front_half(ferry::remote_module<back_half> next) : rest(std::move(next)) {}
  ferry::task<tensor> operator()(tensor points) const {
    const tensor x = ferry::relu(hidden(points));
    co_return co_await rest.forward_async(x);
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
  }
};

// On worker 0.
bool train(const char* data) {
  const digits_file file(data);
  const ferry::remote_module<back_half> back("worker2");
  const ferry::remote_module<front_half> front("worker1", back);
  std::vector<ferry::rref<tensor>> parameters = front.remote_parameters();
  for (auto& each : back.remote_parameters()) parameters.push_back(std::move(each));
  ferry::distributed_optimizer<ferry::adam> optimizer(parameters);

  double accuracy = 0;
  for (int epoch = 0; epoch != epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.set_lr(5e-3 * ferry::cosine_decay(epoch, epochs));
    double loss_sum = 0;
    const std::int64_t count = file.training.digits.numel();
    for (std::int64_t at = 0; at < count; at += batch) {
      const std::int64_t end = std::min(at + batch, count);
      const ferry::dist_autograd::context pass;
      std::vector<ferry::future<tensor>> under_way;
      for (std::int64_t i = at; i < end; i += micro_batch) {
        under_way.push_back(front.forward_async(file.training.points.slice(0, i, std::min(i + micro_batch, end))));
      }
      tensor loss;
      for (std::int64_t i = at; i < end; i += micro_batch) {
        const tensor result = under_way[static_cast<std::size_t>((i - at) / micro_batch)].get();
        const tensor digits = file.training.digits.slice(0, i, std::min(i + micro_batch, end));
        const tensor part =
            ferry::cross_entropy(result, digits) * (static_cast<double>(digits.numel()) / double(end - at));
        loss = loss.defined() ? loss + part : part;
      }
      pass.backward(loss);  // all pieces at once, back through both workers
      optimizer.step(pass);
      loss_sum += ferry::detach(loss).item<float>() * static_cast<double>(end - at);
    }
    const ferry::no_grad outside;
    const tensor seen = ferry::argmax(front.forward(file.held_out.points), 1);
    accuracy = ferry::mean(ferry::eq(seen, file.held_out.digits).to(ferry::dtype::f64)).item<double>();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%  %4.0f ms\n", epoch + 1, loss_sum / static_cast<double>(count),
                100 * accuracy, took.count());
    std::fflush(stdout);
  }
  if (accuracy < 0.95) std::fprintf(stderr, "less than 95 %% of the digits that were held out are recognised\n");
  return accuracy >= 0.95;
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: 17_split_network DIGITS.csv\n");
    return 2;
  }
  try {
    ferry::worker self = ferry::init_rpc();
    const bool right = self.id() != 0 || train(arguments[1]);
    self.shutdown();
    return right ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "17_split_network: %s\n", problem.what());
    return 1;
  }
}

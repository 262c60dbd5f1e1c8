// Worker 0 has handwritten digits, worker 1 a matrix that learns to tell them apart.   ferry-run -n 2 ./15_distributed_autograd digits.csv

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>

#include "../14_digits/digits.hpp"

using ferry::tensor;

constexpr int epochs = 8;
constexpr std::int64_t batch = 32;

// On worker 1: a parameter, and what is computed with it.
tensor make_weight() { return ferry::require_grad(ferry::zeros({10, 64})); }
tensor scores(const tensor& weight, const tensor& points) { return ferry::matmul(points, weight.transpose(0, 1)); }

// On worker 0.
bool train(const char* data) {
  const digits_file file(data);
  const ferry::rref<tensor> weight = ferry::remote<make_weight>("worker1");
  const tensor bias = ferry::require_grad(ferry::zeros({10}));
  // An optimizer at each of the two workers.
  ferry::distributed_optimizer<ferry::adam> optimizer({weight, ferry::rref<tensor>(bias)}, {.lr = 0.01});

  double accuracy = 0;
  for (int epoch = 0; epoch != epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    double loss_sum = 0;
    const std::int64_t count = file.training.digits.numel();
    for (std::int64_t at = 0; at < count; at += batch) {
      const tensor points = file.training.points.slice(0, at, at + batch);
      const tensor digits = file.training.digits.slice(0, at, at + batch);
      const ferry::dist_autograd::context pass;  // calls from here on are recorded
      const tensor loss = ferry::cross_entropy(weight.rpc_sync<&scores>(points) + bias, digits);
      pass.backward(loss);   // through the call, to the leaves of both workers
      optimizer.step(pass);  // by the gradients of this context: there is nothing to clear
      loss_sum += ferry::detach(loss).item<float>() * static_cast<double>(digits.numel());
    }
    const ferry::no_grad outside;
    const tensor seen = ferry::argmax(weight.rpc_sync<&scores>(file.held_out.points) + bias, 1);
    accuracy = ferry::mean(ferry::eq(seen, file.held_out.digits).to(ferry::dtype::f64)).item<double>();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("epoch %d  loss %.4f  accuracy %5.1f %%  %4.0f ms\n", epoch + 1, loss_sum / static_cast<double>(count),
                100 * accuracy, took.count());
    std::fflush(stdout);
  }
  if (accuracy < 0.93) std::fprintf(stderr, "less than 93 %% of the digits that were held out are recognised\n");
  return accuracy >= 0.93;
}

// Both workers' part of it, as a trace for ui.perfetto.dev.
bool train_and_record(const ferry::worker& self, const char* data, const char* file) {
  ferry::profiler::session recorded(self);
  const bool right = train(data);
  constexpr std::chrono::seconds uncertainty(1);  // of clocks: a busy machine will do
  std::ofstream(file) << ferry::profiler::chrome_trace(recorded.finish(), {.largest_uncertainty = uncertainty});
  return right;
}

int main(int count, char** arguments) {
  if (count != 2 && count != 3) {
    std::fprintf(stderr, "usage: 15_distributed_autograd DIGITS.csv [TRACE.json]\n");
    return 2;
  }
  try {
    ferry::worker self = ferry::init_rpc();
    const bool right =
        self.id() != 0 || (count == 3 ? train_and_record(self, arguments[1], arguments[2]) : train(arguments[1]));
    self.shutdown();
    return right ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "15_distributed_autograd: %s\n", problem.what());
    return 1;
  }
}

// A model with tables of embeddings on two servers and dense layers on two trainers.   ferry-run -n 4 ./22_hybrid digits.csv
//
// Each point of a handwritten digit is a token: where it is, and how dark. A table has a row for each token, and the rows of a digit's
// tokens are added up: those of the upper half on worker 2, those of the lower half on worker 3.

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/generator.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "../14_digits/digits.hpp"

using ferry::tensor;
using table = ferry::nn::embedding_bag;

constexpr int trainers = 2, servers = 2, epochs = 12;
constexpr std::int64_t batch = 64;  // of all trainers together
constexpr std::int64_t points_of_half = 32, levels = 5, width = 16;

// On a server. The gradient of a table is the rows that were used.
table make_table(std::uint64_t seed) {
  ferry::generator random(seed);
  return {points_of_half * levels, width, {.mode = ferry::bag_mode::mean, .sparse_gradient = true}, random};
}
tensor look_up(const table& from, const tensor& tokens) { return from(tokens); }
ferry::rref<tensor> weight_of(const table& of) { return ferry::rref<tensor>(of.weight); }

// On each trainer.
struct dense_layers {
  ferry::nn::linear hidden{servers * width, 64};
  ferry::nn::linear out{64, 10};

  tensor operator()(const tensor& x) const { return out(ferry::relu(hidden(x))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("hidden", hidden);
    visit("out", out);
  }
};

// The tokens of one half of each digit: [count, 64] points from 0 to 1 -> [count, 32] rows of a table.
tensor tokens_of(const tensor& points, std::int64_t half) {
  const tensor shown = points.slice(1, half * points_of_half, (half + 1) * points_of_half).contiguous();
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(shown.numel()));
  for (std::size_t i = 0; i != tokens.size(); ++i) {
    const auto level = static_cast<std::int64_t>(shown.data<float>()[i] * (levels - 1));
    tokens[i] = static_cast<std::int64_t>(i) % points_of_half * levels + level;
  }
  return ferry::from_vector(tokens, {points.size(0), points_of_half});
}

// What both servers have for these digits, side by side; they look it up at the same time.
tensor embedded(const std::vector<ferry::rref<table>>& tables, const tensor& points) {
  std::vector<ferry::future<tensor>> under_way;
  for (int half = 0; half != servers; ++half) {
    under_way.push_back(tables[static_cast<std::size_t>(half)].rpc_async<&look_up>(tokens_of(points, half)));
  }
  std::vector<tensor> parts;
  for (const auto& each : under_way) parts.push_back(each.get());
  return ferry::cat(parts, 1);
}

// Both trainers run this, with references to the same tables. Returns the accuracy.
double train(const std::vector<ferry::rref<table>>& tables, const std::string& data) {
  const digits_file file(data);
  const ferry::process_group group({"worker0", "worker1"});
  ferry::manual_seed(3);
  ferry::nn::ddp dense(dense_layers(), group);
  std::vector<ferry::rref<tensor>> parameters;
  for (const auto& each : tables) parameters.push_back(each.rpc_sync<&weight_of>());
  for (const tensor& each : dense.parameters()) parameters.emplace_back(each);
  ferry::distributed_optimizer<ferry::adagrad> optimizer(parameters, {.lr = 0.1});

  double accuracy = 0;
  for (int epoch = 0; epoch != epochs; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    const std::int64_t steps = file.training.digits.numel() / batch;  // the same for every trainer
    const std::int64_t share = batch / trainers;
    double loss_sum = 0;
    for (std::int64_t step = 0; step != steps; ++step) {
      const std::int64_t at = step * batch + group.rank() * share;
      const ferry::dist_autograd::context pass;
      const tensor logits = dense(embedded(tables, file.training.points.slice(0, at, at + share)));
      const tensor loss = ferry::cross_entropy(logits, file.training.digits.slice(0, at, at + share));
      pass.backward(loss);   // averages the gradients of the dense layers, and goes on to the servers
      optimizer.step(pass);  // at both servers, and here
      loss_sum += ferry::detach(loss).item<float>();
    }
    if (group.rank() == 0) {
      const ferry::no_grad outside;
      const tensor seen = ferry::argmax(dense.module()(embedded(tables, file.held_out.points)), 1);
      accuracy = ferry::mean(ferry::eq(seen, file.held_out.digits).to(ferry::dtype::f64)).item<double>();
      const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
      std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%  %4.0f ms\n", epoch + 1,
                  loss_sum / static_cast<double>(steps), 100 * accuracy, took.count());
      std::fflush(stdout);
    }
  }
  group.barrier().get();  // the other trainer may still average
  return accuracy;
}

// Worker 0 makes the tables, and trains beside worker 1.
bool lead(const std::string& data) {
  std::vector<ferry::rref<table>> tables;
  for (int server = 0; server != servers; ++server) {
    tables.push_back(ferry::remote<make_table>(trainers + server, std::uint64_t(server)));
  }
  const auto other = ferry::rpc_async<train>("worker1", tables, data);
  const double accuracy = train(tables, data);
  (void)other.get();
  if (accuracy < 0.93) std::fprintf(stderr, "less than 93 %% of the digits that were held out are recognised\n");
  return accuracy >= 0.93;
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: 22_hybrid DIGITS.csv\n");
    return 2;
  }
  try {
    ferry::worker self = ferry::init_rpc();
    const bool right = self.id() != 0 || lead(arguments[1]);
    self.shutdown();  // the others serve until worker 0 comes here
    return right ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "22_hybrid: %s\n", problem.what());
    return 1;
  }
}

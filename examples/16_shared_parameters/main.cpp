// A parameter server and three trainers, each with a third of the digits.   ferry-run -n 4 ./16_shared_parameters digits.csv

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/generator.hpp>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "../14_digits/digits.hpp"

namespace dist = ferry::dist_autograd;
using ferry::tensor;

constexpr int trainers = 3, epochs = 12;
constexpr std::int64_t batch = 16;

// The server's side: worker 0 --------------------------------------------------------------------------------------

// Parameters begin at random, by one seed.
std::vector<tensor> first_parameters() {
  ferry::manual_seed(1);
  return ferry::nn::parameters(ferry::nn::sequential(ferry::nn::linear(64, 64), ferry::nn::linear(64, 10)));
}
const std::vector<tensor>& shared() {
  static const std::vector<tensor> all = first_parameters();
  return all;
}
std::vector<ferry::rref<tensor>> references() {
  return {ferry::rref(shared()[0]), ferry::rref(shared()[1]), ferry::rref(shared()[2]), ferry::rref(shared()[3])};
}
// Copies of all parameters between two updates. Gradients of the copies go to the parameters.
std::vector<tensor> fetch() {
  const dist::update_turn turn(dist::worker_updates(), {});
  std::vector<tensor> copies;
  for (const tensor& each : shared()) copies.push_back(each.clone());
  return copies;
}

// A trainer's side -------------------------------------------------------------------------------------------------

tensor scores(const std::vector<tensor>& w, const tensor& points) {
  return ferry::linear(ferry::relu(ferry::linear(points, w[0], w[1])), w[2], w[3]);
}
double accuracy(const std::vector<tensor>& w, const digit_set& set) {
  const ferry::no_grad outside;
  const tensor right = ferry::eq(ferry::argmax(scores(w, set.points), 1), set.digits);
  return ferry::mean(right.to(ferry::dtype::f64)).item<double>();
}

// Trainers do not wait for each other: each step updates what the server has then.
void train(int rank, const digits_file& file) {
  const std::int64_t share = file.training.digits.numel() / trainers;
  const tensor points = file.training.points.slice(0, (rank - 1) * share, rank * share);
  const tensor digits = file.training.digits.slice(0, (rank - 1) * share, rank * share);
  ferry::distributed_optimizer<ferry::sgd> optimizer(ferry::rpc_sync<references>("worker0"), {.momentum = 0.8});
  for (int epoch = 0; epoch != epochs; ++epoch) {
    optimizer.set_lr(0.03 * ferry::cosine_decay(epoch, epochs));
    double loss_sum = 0;
    for (std::int64_t at = 0; at < share; at += batch) {
      const dist::context pass;
      const std::vector<tensor> w = ferry::rpc_sync<fetch>("worker0");
      const tensor loss =
          ferry::cross_entropy(scores(w, points.slice(0, at, at + batch)), digits.slice(0, at, at + batch));
      pass.backward(loss, {.then = optimizer});  // the server applies each gradient as soon as it is there
      loss_sum += ferry::detach(loss).item<float>();
    }
    std::printf("epoch %2d  loss %.4f  accuracy %5.1f %%\n", epoch + 1, loss_sum * batch / static_cast<double>(share),
                100 * accuracy(ferry::rpc_sync<fetch>("worker0"), file.held_out));
    std::fflush(stdout);
  }
}

bool run(const char* data) {
  ferry::worker self = ferry::init_rpc();
  const digits_file file(data);
  const bool trainer = self.id() != 0;
  if (trainer) train(self.id().value, file);
  self.shutdown();  // the server comes here at once, and serves until the trainers have come, too
  if (trainer) return true;
  const double reached = accuracy(shared(), file.held_out);
  std::printf("after %d trainers: accuracy %.1f %%\n", trainers, 100 * reached);
  if (reached < 0.93) std::fprintf(stderr, "less than 93 %% of the digits that were held out are recognised\n");
  return reached >= 0.93;
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: 16_shared_parameters DIGITS.csv\n");
    return 2;
  }
  try {
    return run(arguments[1]) ? 0 : 1;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "16_shared_parameters: %s\n", problem.what());
    return 1;
  }
}

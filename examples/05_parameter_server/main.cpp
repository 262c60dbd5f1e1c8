// A parameter server (worker 0) and trainers (the others) fit a linear model.   ferry-run -n 4 ./05_parameter_server

#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/profiler.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

using ferry::tensor;

constexpr int epochs = 12, batches = 4, rows = 20, features = 100;
constexpr double learning_rate = 0.02, momentum = 0.9;

// The server's side -------------------------------------------------------------------------------------------------

struct parameter_server {
  std::mutex mutex;
  tensor weights = ferry::zeros({features, 1});
  tensor velocity = ferry::zeros({features, 1});
  tensor gradients = ferry::zeros({features, 1});  // added up, of this round
  std::vector<ferry::promise<tensor>> waiting;     // one per trainer that has delivered
  double loss = 0, first_epoch_loss = 0, epoch_loss = 0;
  int step = 0;
};
parameter_server server;

void report(int epoch, double loss) {
  const auto bar = static_cast<std::size_t>(std::fmax(1, 12 * std::log10(1 + 10 * loss)));
  std::printf("epoch %2d  loss %9.4f  %s\n", epoch, loss, std::string(bar, '#').c_str());
  std::fflush(stdout);
}

// Takes a trainer's gradient and answers with the new weights when all trainers have delivered theirs: the future that
// it returns is completed by the call that comes last. No thread waits meanwhile.
ferry::future<tensor> exchange(tensor gradient, double loss) {
  const std::size_t trainers = ferry::get_worker_infos().size() - 1;
  std::unique_lock lock(server.mutex);
  server.gradients = server.gradients + gradient;
  server.loss += loss;
  ferry::future<tensor> updated = server.waiting.emplace_back().get_future();
  if (server.waiting.size() < trainers) return updated;

  const auto share = 1.0 / static_cast<double>(trainers);
  server.velocity = momentum * server.velocity + share * server.gradients;
  // A new tensor, not the old one changed in place: that may still be on its way to a trainer.
  server.weights = server.weights - learning_rate * server.velocity;
  server.gradients = ferry::zeros({features, 1});
  server.epoch_loss += std::exchange(server.loss, 0.0) * share / batches;
  if (++server.step % batches == 0) {
    if (server.step == batches) server.first_epoch_loss = server.epoch_loss;
    report(server.step / batches, server.epoch_loss);
    if (server.step != epochs * batches) server.epoch_loss = 0;
  }
  auto waiting = std::exchange(server.waiting, {});
  const tensor weights = server.weights;
  lock.unlock();
  for (auto& trainer : waiting) trainer.set_value(weights);
  return updated;
}

tensor current_weights() {
  std::lock_guard lock(server.mutex);
  return server.weights;
}

// A trainer's side --------------------------------------------------------------------------------------------------

// Its own share of the data, the same in every epoch: targets are a hidden linear function of the inputs, with noise.
bool train(int rank) {
  ferry::generator hidden(1);
  const tensor truth = ferry::randn({features, 1}, hidden);
  ferry::generator random(1000 + static_cast<std::uint64_t>(rank));
  std::vector<std::pair<tensor, tensor>> data;
  for (int i = 0; i != batches; ++i) {
    const tensor inputs = ferry::randn({rows, features}, random);
    data.emplace_back(inputs, ferry::matmul(inputs, truth) + 0.1 * ferry::randn({rows, 1}, random));
  }

  tensor weights = ferry::rpc_sync<current_weights>("worker0");
  for (int epoch = 0; epoch != epochs; ++epoch) {
    for (const auto& [inputs, targets] : data) {
      const tensor error = ferry::matmul(inputs, weights) - targets;
      const double loss = ferry::sum(error * error).item<double>() / rows;
      const tensor gradient = (2.0 / rows) * ferry::matmul(inputs.transpose(0, 1), error);
      weights = ferry::rpc_sync<exchange>("worker0", gradient, loss);
    }
  }

  const bool same = ferry::equal(weights, ferry::rpc_sync<current_weights>("worker0"));
  const tensor off = weights - truth;
  std::printf("my weights %s the server's; mean square distance to the hidden ones: %.5f\n", same ? "are" : "ARE NOT",
              ferry::sum(off * off).item<double>() / features);
  return same;
}

// What the first trainer did, and what the server did for it, as a trace for ui.perfetto.dev.
bool train_and_record(const ferry::worker& self, const char* file) {
  ferry::profiler::session recorded(self);
  const bool right = train(self.id().value);
  constexpr std::chrono::seconds uncertainty(1);  // of clocks: a busy machine will do
  std::ofstream(file) << ferry::profiler::chrome_trace(recorded.finish(), {.largest_uncertainty = uncertainty});
  return right;
}

int main(int count, char** arguments) {
  ferry::worker self = ferry::init_rpc();
  if (self.workers().size() < 2) {
    std::fprintf(stderr, "the server needs at least one trainer: ferry-run -n 2 ./05_parameter_server\n");
    return 2;
  }
  const int rank = self.id().value;
  bool right = rank == 0 || (rank == 1 && count > 1 ? train_and_record(self, arguments[1]) : train(rank));
  self.shutdown();  // the server comes here at once, and serves until the trainers have come, too

  if (rank == 0) {
    right = server.step == epochs * batches && server.epoch_loss < server.first_epoch_loss / 20;
    std::printf("%d steps; the loss %s to 1/%.0f of what it was in the first epoch\n", server.step,
                right ? "fell" : "SHOULD HAVE FALLEN further than", server.first_epoch_loss / server.epoch_loss);
  }
  return right ? 0 : 1;
}

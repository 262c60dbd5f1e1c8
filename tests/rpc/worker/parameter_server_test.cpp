// A server that answers its trainers together: an asynchronous handler completes the futures of all callers at once.

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <ferry/ferry.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>

#include "cluster.hpp"

namespace parameter_server_test {

using ferry::tensor;

constexpr int trainers = 3;
constexpr int batches = 4;
constexpr int rows = 20;
constexpr int features = 100;

// Where the handlers of the server find its state: all workers of these tests are in one process.
struct server_state {
  std::mutex mutex;
  std::condition_variable arrived;
  std::vector<ferry::promise<tensor>> waiting;
  tensor sum;
  tensor weights;
  tensor velocity;
  std::vector<tensor> averages;
  int served_by = -1;
};
server_state* server = nullptr;

class serving {
 public:
  serving() { server = &state; }
  ~serving() { server = nullptr; }
  serving(const serving&) = delete;
  serving& operator=(const serving&) = delete;
  server_state state;
};

// Collects one tensor of each trainer; the last one makes the answer to all of them.
template <class Answer>
ferry::future<tensor> collect(const tensor& part, Answer answer) {
  std::unique_lock lock(server->mutex);
  server->served_by = ferry::get_worker_info().id().value;
  server->sum = server->sum.defined() ? ferry::add(server->sum, part) : part.clone();
  auto result = server->waiting.emplace_back().get_future();
  server->arrived.notify_all();
  if (server->waiting.size() < trainers) return result;
  const tensor to_all = answer(ferry::mul(std::exchange(server->sum, tensor()), 1.0 / trainers));
  auto waiting = std::exchange(server->waiting, {});
  lock.unlock();
  for (auto& each : waiting) each.set_value(to_all);
  return result;
}

ferry::future<tensor> average(tensor part) {
  return collect(part, [](tensor mean) { return server->averages.emplace_back(std::move(mean)); });
}

// SGD, learning rate 0.001, momentum 0.9.
ferry::future<tensor> update(tensor gradient) {
  return collect(gradient, [](const tensor& mean) {
    server->velocity = ferry::add(mean, server->velocity, 0.9);
    server->weights = ferry::sub(server->weights, server->velocity, 0.001);
    return server->weights;
  });
}

tensor current_weights() {
  std::lock_guard lock(server->mutex);
  return server->weights;
}

struct batch {
  tensor inputs;
  tensor targets;
};
std::vector<batch> batches_of(int rank) {
  ferry::generator random(static_cast<std::uint64_t>(rank));
  std::vector<batch> result;
  for (int i = 0; i != batches; ++i) {
    const tensor inputs = ferry::randn({rows, features}, random, ferry::dtype::f64);
    result.push_back({inputs, ferry::matmul(inputs, ferry::ones({features, 1}, ferry::dtype::f64))});
  }
  return result;
}
tensor error_of(const batch& data, const tensor& weights) {
  return ferry::sub(ferry::matmul(data.inputs, weights), data.targets);
}
double loss_of(const batch& data, const tensor& weights) {
  const tensor error = error_of(data, weights);
  return ferry::sum(ferry::mul(error, error)).item<double>() / rows;
}
tensor gradient_of(const batch& data, const tensor& weights) {
  return ferry::mul(ferry::matmul(data.inputs.transpose(0, 1), error_of(data, weights)), 2.0 / rows);
}

TEST_CASE("[row 44] trainers that send gradients all receive the average, and it is the server's") {
  constexpr int rounds = 10;
  serving served;
  std::vector<std::vector<tensor>> received(trainers + 1);
  ferry_test::run_cluster(trainers + 1, [&](ferry::worker& self) {
    const int rank = self.id().value;
    if (rank == 0) return;
    for (int round = 0; round != rounds; ++round) {
      // Whole numbers: their sum does not depend on the order of arrival.
      const tensor gradient = ferry::full({rows, features}, round * 10 + rank, ferry::dtype::f64);
      received[static_cast<std::size_t>(rank)].push_back(self.rpc_async<average>("worker0", gradient).get());
    }
  });

  CHECK(served.state.served_by == 0);
  REQUIRE(served.state.averages.size() == rounds);
  for (std::size_t round = 0; round != rounds; ++round) {
    const tensor& mean = served.state.averages[round];
    CHECK(ferry::allclose(mean, ferry::full({rows, features}, static_cast<double>(round) * 10 + 2, ferry::dtype::f64)));
    for (std::size_t rank = 1; rank <= trainers; ++rank) {
      REQUIRE(received[rank].size() == rounds);
      CHECK(ferry::equal(received[rank][round], mean));
    }
  }
}

TEST_CASE("[row 45] a server steps SGD with momentum on the gradients of 3 trainers and completes all their futures") {
  serving served;
  served.state.weights = ferry::zeros({features, 1}, ferry::dtype::f64);
  served.state.velocity = ferry::zeros({features, 1}, ferry::dtype::f64);
  std::vector<std::vector<tensor>> models(trainers + 1);
  ferry_test::run_cluster(trainers + 1, [&](ferry::worker& self) {
    const int rank = self.id().value;
    if (rank == 0) return;
    tensor weights = self.rpc_sync<current_weights>("worker0");
    for (const batch& data : batches_of(rank)) {
      weights = self.rpc_async<update>("worker0", gradient_of(data, weights)).get();
      models[static_cast<std::size_t>(rank)].push_back(weights);
    }
    CHECK(ferry::equal(weights, self.rpc_sync<current_weights>("worker0")));
  });

  // The same without calls. Gradients may be added up in another order there, so their last bits differ.
  std::vector<std::vector<batch>> data;
  for (int rank = 1; rank <= trainers; ++rank) data.push_back(batches_of(rank));
  tensor weights = ferry::zeros({features, 1}, ferry::dtype::f64);
  tensor velocity = weights;
  double before = 0;
  double after = 0;
  for (std::size_t i = 0; i != batches; ++i) {
    tensor sum = ferry::zeros({features, 1}, ferry::dtype::f64);
    for (const auto& of_trainer : data) sum = ferry::add(sum, gradient_of(of_trainer[i], weights));
    velocity = ferry::add(ferry::mul(sum, 1.0 / trainers), velocity, 0.9);
    weights = ferry::sub(weights, velocity, 0.001);
    for (std::size_t rank = 1; rank <= trainers; ++rank) {
      REQUIRE(models[rank].size() == batches);
      CHECK(ferry::allclose(models[rank][i], weights, 1e-9, 1e-12));
      CHECK(ferry::equal(models[rank][i], models[1][i]));
    }
  }
  CHECK(ferry::equal(models[1].back(), served.state.weights));
  for (const auto& of_trainer : data) {
    for (const batch& each : of_trainer) {
      before += loss_of(each, ferry::zeros({features, 1}, ferry::dtype::f64));
      after += loss_of(each, weights);
    }
  }
  CHECK(after < before);
}

TEST_CASE("a trainer whose gradient does not fit gets the error, and the others are answered when it sends another") {
  serving served;
  ferry_test::cluster group(trainers + 1);
  std::vector<ferry::future<tensor>> answers;
  for (int rank = 1; rank < trainers; ++rank) {
    answers.push_back(group[rank].rpc_async<average>("worker0", ferry::ones({2, 2})));
  }
  {
    std::unique_lock lock(served.state.mutex);
    served.state.arrived.wait(lock, [&] { return served.state.waiting.size() == trainers - 1; });
  }
  for (auto& answer : answers) CHECK_FALSE(answer.ready());
  try {
    group[trainers].rpc_sync<average>("worker0", ferry::ones({3}));
    FAIL("shapes that do not fit were added");
  } catch (const ferry::error& problem) {
    CHECK(problem.kind() == ferry::errc::bad_shape);
  }
  answers.push_back(group[trainers].rpc_async<average>("worker0", ferry::ones({2, 2})));
  for (auto& answer : answers) CHECK(ferry::equal(answer.get(), ferry::ones({2, 2})));
}

}  // namespace parameter_server_test

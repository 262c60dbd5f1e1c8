// Training on one worker: the cost of a node of the graph, and a step of a small net. One thread, on one processor; beside libtorch, which
// a process of its own runs in turn, if the build has found it. Then passes through two workers (support/distributed_passes.hpp).

#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>
#include <ferry/tensor/generator.hpp>

#include "support/affinity.hpp"
#include "support/distributed_passes.hpp"
#include "support/options.hpp"
#include "support/peer_program.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::tensor;

constexpr std::array<std::int64_t, 6> widths{512, 256, 128, 64, 32, 8};
constexpr int chain_length = 1000;

// A process of libtorch, which measures the same.
class torch_peer : public peer_program {
 public:
  torch_peer() : peer_program("torch_training") {}
  [[nodiscard]] double measure(const std::string& what, std::chrono::nanoseconds window) const {
    return std::stod(
        ask(fmt::format("{} {}", what, std::chrono::duration_cast<std::chrono::milliseconds>(window).count())));
  }
};

// A parameter of each layer, drawn from one seed.
struct net {
  explicit net(std::int64_t batch) {
    ferry::generator source(1);
    for (std::size_t i = 0; i + 1 != widths.size(); ++i) {
      weights.push_back(ferry::require_grad(ferry::mul(ferry::randn({widths[i + 1], widths[i]}, source), 0.05)));
      biases.push_back(ferry::require_grad(ferry::zeros({widths[i + 1]})));
    }
    x = ferry::randn({batch, widths.front()}, source);
    target = ferry::zeros({batch}, ferry::dtype::i64);
    for (std::int64_t i = 0; i != batch; ++i) target.data<std::int64_t>()[i] = i % widths.back();
    std::vector<tensor> all = weights;
    all.insert(all.end(), biases.begin(), biases.end());
    optimizer.emplace(std::move(all), ferry::sgd::options{.lr = 0.001});
  }
  void step() {
    optimizer->zero_grad();
    tensor y = x;
    for (std::size_t i = 0; i != weights.size(); ++i) {
      y = ferry::linear(y, weights[i], biases[i]);
      if (i == 1) y = ferry::relu(y);
    }
    ferry::backward(ferry::cross_entropy(y, target));
    optimizer->step();
  }

  std::vector<tensor> weights;
  std::vector<tensor> biases;
  tensor x;
  tensor target;
  std::optional<ferry::optimizer<ferry::sgd>> optimizer;
};

double median_us(std::chrono::nanoseconds window, const auto& once) {
  for (int warm = 0; warm != 3; ++warm) once();
  auto samples = time_each(window, 10, once);
  return quantile(samples, 0.5);
}

void compare(report& out, const options& chosen, const torch_peer& peer, const std::string& name,
             const std::string& unit, const std::string& asked, double part, const auto& own,
             std::optional<target> wanted) {
  if (!chosen.wants(name)) return;
  const auto window = chosen.window_or(400ms);
  const bool beside = peer.there() && !chosen.alone;
  repeated values;
  repeated baselines;
  for (int i = 0; i != chosen.repeats; ++i) {
    values.add(own(window) / part);
    if (beside) baselines.add(peer.measure(asked, window) / part);
  }
  out.add(name, values, unit, beside ? "libtorch" : "", beside ? &baselines : nullptr,
          static_cast<std::size_t>(chosen.repeats), beside ? wanted : std::nullopt);
}

void measure_graph(report& out, const options& chosen, const torch_peer& peer) {
  out.section("graph/");
  const tensor x = ferry::require_grad(ferry::tensor_of({1.F}));
  const auto chain = [&] {
    tensor y = x;
    for (int i = 0; i != chain_length; ++i) y = y * 1.0001;
    return y;
  };
  compare(
      out, chosen, peer, "graph/forward-per-operation", "us", "forward", chain_length,
      [&](auto window) { return median_us(window, [&] { (void)chain(); }); }, std::nullopt);
  compare(
      out, chosen, peer, "graph/backward-per-node", "us", "backward", chain_length,
      [&](auto window) {
        std::vector<double> samples;
        const auto until = clock::now() + window;
        do {
          const tensor y = chain();
          const auto start = clock::now();
          ferry::backward(y);
          samples.push_back(std::chrono::duration<double, std::micro>(clock::now() - start).count());
        } while (clock::now() < until);
        return quantile(samples, 0.5);
      },
      target{0.125, false, true});
}

void measure_step(report& out, const options& chosen, const torch_peer& peer) {
  out.section("step/");
  const std::array<std::pair<int, double>, 3> batches{{{7, 1 / 1.9}, {32, 1}, {256, 1 / 1.3}}};
  for (const auto& [batch, bound] : batches) {
    net own(batch);
    compare(
        out, chosen, peer, fmt::format("step/batch-{}", batch), "us", fmt::format("step-{}", batch), 1,
        [&](auto window) { return median_us(window, [&] { own.step(); }); }, target{bound, false, true});
  }
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, distributed_roles());
  const options chosen = read_options(
      argc, argv,
      "autograd: the cost of a node of the graph, and a step of the net 512-256-128-64-32-8, on one thread; a pass "
      "through two workers");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(300));
  try {
    pin_process(0, pin_mode::same_core, side::caller);
    report out("autograd", chosen);
    const torch_peer peer;
    out.say(peer.there() ? peer.ask("about") : "without libtorch: the build has not found it (Debian: libtorch-dev)");
    measure_graph(out, chosen, peer);
    measure_step(out, chosen, peer);
    measure_distributed(out, chosen);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "autograd: %s\n", e.what());
    return 1;
  }
}

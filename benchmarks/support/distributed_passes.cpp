#include "distributed_passes.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ferry/autograd.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/factories.hpp>

#include "peer_program.hpp"
#include "statistics.hpp"
#include "worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::tensor;
namespace dist = ferry::dist_autograd;

tensor add_remotely(const tensor& a, const tensor& b) { return ferry::add(a, b); }

struct operands {
  tensor a = ferry::ones({3, 3});
  tensor b = ferry::ones({3, 3});
};
struct leaves : operands {
  leaves() {
    ferry::require_grad(a);
    ferry::require_grad(b);
  }
};

tensor keep_parameter(const tensor& values) { return ferry::require_grad(values.clone()); }
tensor times_parameter(const tensor& parameter, const tensor& x) { return ferry::mul(parameter, x); }

double microseconds_since(clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(clock::now() - begin).count();
}

void two_plain_calls(const ferry::worker& caller, const operands& of) {
  (void)caller.rpc_sync<add_remotely>(callee, of.a, of.b);
  (void)caller.rpc_sync<add_remotely>(callee, of.a, of.b);
}

void round(const ferry::worker& caller, const leaves& of, dist::backward_mode mode) {
  const dist::context context(caller);
  const tensor sum = caller.rpc_sync<add_remotely>(callee, of.a, of.b);
  dist::backward(context, ferry::sum(sum), {.mode = mode});
}

// Threads with a context each, at once.
double rounds_per_second(const ferry::worker& caller, int threads, std::chrono::nanoseconds window) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(threads));
  std::vector<std::thread> all;
  const auto started = clock::now();
  for (std::size_t& count : counts) {
    all.emplace_back([&caller, &count, until = started + window] {
      const leaves own;
      for (; clock::now() < until; ++count) round(caller, own, dist::backward_mode::smart);
    });
  }
  std::size_t sum = 0;
  for (std::size_t i = 0; i != all.size(); ++i) {
    all[i].join();
    sum += counts[i];
  }
  return static_cast<double>(sum) / std::chrono::duration<double>(clock::now() - started).count();
}

double plain_per_second(const ferry::worker& caller, int threads, std::chrono::nanoseconds window) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(threads));
  std::vector<std::thread> all;
  const auto started = clock::now();
  for (std::size_t& count : counts) {
    all.emplace_back([&caller, &count, until = started + window] {
      const operands own;
      for (; clock::now() < until; ++count) two_plain_calls(caller, own);
    });
  }
  std::size_t sum = 0;
  for (std::size_t i = 0; i != all.size(); ++i) {
    all[i].join();
    sum += counts[i];
  }
  return static_cast<double>(sum) / std::chrono::duration<double>(clock::now() - started).count();
}

// Null: the machine or the options do not allow two processors.
std::unique_ptr<worker_pair> start_pair(const options& chosen, const std::string& transport) {
  const auto pins = chosen.pins_or({pin_mode::two_cores});
  if (pins.empty()) return nullptr;
  return std::make_unique<worker_pair>(pair_options{.transport = transport}, pins.front());
}

void measure_pair(report& out, const options& chosen, const std::string& transport) {
  const std::string prefix = fmt::format("distributed/{}/", transport);
  const std::array<std::string, 3> names{prefix + "round", prefix + "smart", prefix + "rounds-of-16-threads"};
  if (!chosen.wants(names[0]) && !chosen.wants(names[1]) && !chosen.wants(names[2])) return;
  out.section(prefix);
  const std::unique_ptr<worker_pair> pair = start_pair(chosen, transport);
  if (!pair) return;
  const ferry::worker& caller = pair->caller();
  const leaves own;
  const auto window = chosen.window_or(200ms);
  const int turns = chosen.repeats * 3;
  const auto median = [&](const auto& once) {
    auto samples = time_each(window, 10, once);
    return quantile(samples, 0.5);
  };
  for (int warm = 0; warm != 200; ++warm) {
    two_plain_calls(caller, own);
    round(caller, own, dist::backward_mode::fast);
  }
  repeated smart;
  repeated fast;
  repeated plain;
  for (int turn = 0; turn != turns; ++turn) {
    plain.add(median([&] { two_plain_calls(caller, own); }));
    smart.add(median([&] { round(caller, own, dist::backward_mode::smart); }));
    fast.add(median([&] { round(caller, own, dist::backward_mode::fast); }));
  }
  const auto n = static_cast<std::size_t>(turns);
  if (chosen.wants(names[0])) out.add(names[0], smart, "us", "two plain calls", &plain, n, target{1.5, false, true});
  if (chosen.wants(names[1])) out.add(names[1], smart, "us", "fast", &fast, n, target{1.15, false, true});
  if (!chosen.wants(names[2])) return;
  repeated rate;
  repeated plain_rate;
  for (int turn = 0; turn != chosen.repeats; ++turn) {
    plain_rate.add(plain_per_second(caller, 16, window));
    rate.add(rounds_per_second(caller, 16, window));
  }
  out.add(names[2], rate, "/s", "two plain calls", &plain_rate, static_cast<std::size_t>(chosen.repeats));
}

void nothing() {}

constexpr int many_calls = 64;

// Microseconds of a pass from `used` of the results of many calls.
double pass_from(const ferry::worker& caller, const leaves& of, std::size_t used) {
  const dist::context context(caller);
  std::vector<tensor> roots;
  for (int i = 0; i != many_calls; ++i) {
    tensor sum = caller.rpc_sync<add_remotely>(callee, of.a, of.b);
    if (roots.size() != used) roots.push_back(ferry::sum(sum));
  }
  const auto begin = clock::now();
  dist::backward(context, roots);
  return microseconds_since(begin);
}

// What other ways to know which gradients will come would cost: zeros for all messages, or a wave of marks before each pass, a
// round trip for each level of calls.
void measure_alternatives(report& out, const options& chosen, const std::string& transport) {
  const std::string prefix = fmt::format("distributed/{}/", transport);
  const std::string unused_name = prefix + "zeros";
  const std::string wave_name = prefix + "marks";
  if (!chosen.wants(unused_name) && !chosen.wants(wave_name)) return;
  const std::unique_ptr<worker_pair> pair = start_pair(chosen, transport);
  if (!pair) return;
  const ferry::worker& caller = pair->caller();
  const leaves own;
  const auto window = chosen.window_or(200ms);
  repeated of_all;
  repeated of_one;
  repeated marked;
  repeated plain;
  for (int turn = 0; turn != chosen.repeats; ++turn) {
    std::vector<double> all;
    std::vector<double> one;
    std::vector<double> with_wave;
    std::vector<double> without;
    for (const auto until = clock::now() + 4 * window; clock::now() < until || all.size() < 10;) {
      all.push_back(pass_from(caller, own, many_calls));
      one.push_back(pass_from(caller, own, 1));
      const dist::context context(caller);
      const tensor sum = ferry::sum(caller.rpc_sync<add_remotely>(callee, own.a, own.b));
      for (const bool wave : {true, false}) {
        const auto begin = clock::now();
        if (wave) caller.rpc_sync<nothing>(callee);
        dist::backward(context, sum, {.retain_graph = true});
        (wave ? with_wave : without).push_back(microseconds_since(begin));
      }
    }
    of_all.add(quantile(all, 0.5));
    of_one.add(quantile(one, 0.5));
    marked.add(quantile(with_wave, 0.5));
    plain.add(quantile(without, 0.5));
  }
  const auto n = static_cast<std::size_t>(chosen.repeats);
  if (chosen.wants(unused_name)) out.add(unused_name, of_all, "us", "1 of 64 results used", &of_one, n);
  if (chosen.wants(wave_name)) out.add(wave_name, marked, "us", "a pass without a wave", &plain, n);
}

// A parameter at the other worker: what a step of its optimizer costs beside a plain call, and what a pass that also updates costs
// beside a pass and a step.
void measure_steps(report& out, const options& chosen, const std::string& transport) {
  const std::string prefix = fmt::format("distributed/{}/", transport);
  const std::string step_name = prefix + "step";
  const std::string then_name = prefix + "pass-then-update";
  if (!chosen.wants(step_name) && !chosen.wants(then_name)) return;
  const std::unique_ptr<worker_pair> pair = start_pair(chosen, transport);
  if (!pair) return;
  const ferry::worker& caller = pair->caller();
  const operands of;
  const auto parameter = caller.remote<keep_parameter>(callee, of.a);
  (void)parameter.to_here();
  ferry::distributed_optimizer<ferry::sgd> optimizer({parameter}, {.lr = 1e-9});
  const auto window = chosen.window_or(200ms);
  repeated steps;
  repeated calls;
  repeated with_update;
  repeated pass_and_step;
  for (int turn = 0; turn != chosen.repeats; ++turn) {
    std::vector<double> step;
    std::vector<double> call;
    std::vector<double> fused;
    std::vector<double> apart;
    for (const auto until = clock::now() + 4 * window; clock::now() < until || step.size() < 10;) {
      {
        auto begin = clock::now();
        const dist::context context(caller);
        context.backward(ferry::sum(parameter.rpc_sync<&times_parameter>(of.b)));
        const auto stepping = clock::now();
        optimizer.step(context);
        step.push_back(microseconds_since(stepping));
        apart.push_back(microseconds_since(begin));
      }
      {
        const auto begin = clock::now();
        const dist::context context(caller);
        context.backward(ferry::sum(parameter.rpc_sync<&times_parameter>(of.b)), {.then = optimizer});
        fused.push_back(microseconds_since(begin));
      }
      const auto begin = clock::now();
      (void)caller.rpc_sync<add_remotely>(callee, of.a, of.b);
      call.push_back(microseconds_since(begin));
    }
    steps.add(quantile(step, 0.5));
    calls.add(quantile(call, 0.5));
    with_update.add(quantile(fused, 0.5));
    pass_and_step.add(quantile(apart, 0.5));
  }
  const auto n = static_cast<std::size_t>(chosen.repeats);
  if (chosen.wants(step_name)) out.add(step_name, steps, "us", "a plain call", &calls, n);
  if (chosen.wants(then_name)) out.add(then_name, with_update, "us", "pass, then step", &pass_and_step, n);
}

// The same round through PyTorch's agent, in turn; each on two processors, with its defaults.
void compare_with_torch(report& out, const options& chosen) {
  const std::string name = "distributed/default/round-torch";
  const peer_program peer("torch_dist_autograd");
  if (!chosen.wants(name) || chosen.alone || !peer.there()) return;
  out.section("distributed/default/");
  const auto window = chosen.window_or(1s);
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(window).count();
  repeated own;
  repeated torch;
  for (int turn = 0; turn != chosen.repeats; ++turn) {
    {
      const worker_pair pair({.transport = "shm"}, pin_mode::two_cores);  // the default between processes
      const leaves of;
      for (int warm = 0; warm != 200; ++warm) round(pair.caller(), of, dist::backward_mode::smart);
      auto samples = time_each(window, 10, [&] { round(pair.caller(), of, dist::backward_mode::smart); });
      own.add(quantile(samples, 0.5));
    }
    torch.add(std::stod(peer.ask(fmt::format("{} 2>/dev/null", milliseconds))));
  }
  out.add(name, own, "us", "TensorPipe agent, C++", &torch, static_cast<std::size_t>(chosen.repeats),
          target{0.125, false, true});
}

}  // namespace

std::map<std::string, role> distributed_roles() { return worker_roles(); }

void measure_distributed(report& out, const options& chosen) {
  for (const std::string transport : {"shm", "unix", "tcp"}) {
    measure_pair(out, chosen, transport);
    measure_steps(out, chosen, transport);
    measure_alternatives(out, chosen, transport);
  }
  compare_with_torch(out, chosen);
}

}  // namespace ferry_bench

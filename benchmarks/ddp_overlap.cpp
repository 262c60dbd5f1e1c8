// How much of the communication of data-parallel training goes on behind the pass that makes the gradients. Two processes whose
// connection goes through proxies that delay it and let few bytes through, and passes that take a tenth longer than their averages.
//
// At rank 0, milliseconds of: the pass alone; the averages of its buckets alone, all begun at once; the pass of nn::ddp.
// Hidden is (pass + averages - ddp) / averages: 1 if the averages cost nothing, 0 if they only begin when the pass is over.
//
// `elsewhere`: the gradients of each layer take their time while the processor is free, as on an accelerator. `here`: they are computed,
// by one thread of each process, which on two processors leaves none for the connection and the proxies.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/test_kit/fault_proxy.hpp>

#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::tensor;

constexpr std::int64_t width = 512;
constexpr std::size_t layers = 16;
constexpr std::size_t layer_bytes = sizeof(float) * width * width;  // 1 MiB: a bucket
constexpr std::int64_t small_batch = 8;
constexpr std::int64_t first_batch = 128;
constexpr ferry::link_faults slow_link{.delay = 1ms, .bytes_per_second = 50'000'000};

// Whose gradient takes a while to come.
struct elsewhere : ferry::function<elsewhere> {
  static constexpr std::string_view name = "elsewhere";
  struct saved {
    std::chrono::duration<double, std::milli> time{};
  };
  static tensor forward(saved& keep, const tensor& x, std::chrono::duration<double, std::milli> time) {
    keep.time = time;
    return x;
  }
  static tensor backward(const saved& kept, const tensor& gradient) {
    std::this_thread::sleep_for(kept.time);
    return gradient;
  }
};

struct net {
  std::vector<ferry::nn::linear> all;
  std::chrono::duration<double, std::milli> elsewhere_each{};

  net() {
    for (std::size_t i = 0; i != layers; ++i) all.emplace_back(width, width, ferry::nn::linear_options{.bias = false});
  }
  tensor operator()(tensor x) const {
    for (const ferry::nn::linear& each : all) {
      x = ferry::relu(each(x));
      if (elsewhere_each.count() > 0) x = elsewhere::apply(x, elsewhere_each);
    }
    return x;
  }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("all", all);
  }
};

double milliseconds_of(const auto& what) {
  const auto begin = clock::now();
  what();
  return std::chrono::duration<double, std::milli>(clock::now() - begin).count();
}

struct setting {
  std::string directory;
  int rank = 0;
  int repeats = 5;
  int passes = 5;  // of each kind in a repeat
};

// The same on every member; rank 0 has a report.
void take_part(const setting& with, report* out) {
  const std::uint16_t port = free_port();
  ferry::fault_proxy network(fmt::format("127.0.0.1:{}", port));
  ferry::worker self =
      ferry::init_rpc({.name = "member" + std::to_string(with.rank),
                       .rank = with.rank,
                       .world_size = 2,
                       .init_method = "file://" + with.directory + "/store",
                       .transports = {"tcp"},
                       .transport = {.bind = "127.0.0.1", .advertise = network.address(), .port = port},
                       .init_timeout = 60s,
                       .exit_timeout = 20s});
  {
    const ferry::process_group group(self);
    ferry::nn::ddp model(net(), group, {.bucket_bytes = layer_bytes, .first_bucket_bytes = layer_bytes});
    net plain;
    tensor x;
    std::vector<tensor> buckets;
    for (std::size_t i = 0; i != layers; ++i) buckets.push_back(ferry::zeros({width * width}));

    // All begin together.
    const auto pass = [&](auto& through) {
      const tensor loss = ferry::sum(through(x));
      group.barrier().get();
      return milliseconds_of([&] { ferry::backward(loss); });
    };
    const auto averages = [&] {
      group.barrier().get();
      return milliseconds_of([&] {
        std::vector<ferry::future<void>> under_way;
        for (const tensor& each : buckets) under_way.push_back(group.all_reduce(each, ferry::reduce_op::avg));
        for (auto& each : under_way) each.get();
      });
    };
    const auto median_of = [](const auto& once) {
      std::vector<double> times;
      for (int i = 0; i != 5; ++i) times.push_back(once());
      return quantile(times, 0.5);
    };
    // What rank 0 has found.
    const auto agreed = [&](double value) {
      const tensor shared = ferry::full({1}, value, ferry::dtype::f64);
      group.broadcast(shared, 0).get();
      return shared.item<double>();
    };
    const auto measure = [&](const std::string& name, std::optional<target> wanted) {
      pass(model);
      repeated pass_alone;
      repeated averages_alone;
      repeated both;
      repeated hidden;
      for (int repeat = 0; repeat != with.repeats; ++repeat) {
        std::vector<double> a;
        std::vector<double> b;
        std::vector<double> c;
        for (int i = 0; i != with.passes; ++i) {
          a.push_back(pass(plain));
          b.push_back(averages());
          c.push_back(pass(model));
        }
        pass_alone.add(quantile(a, 0.5));
        averages_alone.add(quantile(b, 0.5));
        both.add(quantile(c, 0.5));
        hidden.add((quantile(a, 0.5) + quantile(b, 0.5) - quantile(c, 0.5)) / quantile(b, 0.5));
      }
      if (!out) return;
      const auto samples = static_cast<std::size_t>(with.repeats * with.passes);
      out->section(fmt::format("{}: {} layers of {} x {}, a bucket each; batches of {}; a link of 50 MB/s and 1 ms",
                               name, layers, width, width, x.shape()[0]));
      out->add(name + "/pass", pass_alone, "ms", "", nullptr, samples);
      out->add(name + "/averages", averages_alone, "ms", "", nullptr, samples);
      out->add(name + "/ddp", both, "ms", "", nullptr, samples);
      out->add(name + "/hidden", hidden, "of the averages", "", nullptr, samples, wanted);
    };

    network.set_faults(slow_link);
    const double exchange = agreed(median_of(averages));
    x = ferry::randn({small_batch, width});
    const double computes = agreed(median_of([&] { return pass(plain); }));
    for (net* each : {&plain, &model.module()}) {
      each->elsewhere_each = std::chrono::duration<double, std::milli>((1.1 * exchange - computes) / layers);
    }
    measure("elsewhere", target{0.7, true, false});

    for (net* each : {&plain, &model.module()}) each->elsewhere_each = {};
    // Twice: larger batches take less than in proportion.
    std::int64_t rows = first_batch;
    for (int round = 0; round != 2; ++round) {
      x = ferry::randn({rows, width});
      const double factor = 1.1 * exchange / median_of([&] { return pass(plain); });
      rows = std::max<std::int64_t>(1, std::llround(agreed(static_cast<double>(rows) * factor)));
    }
    x = ferry::randn({rows, width});
    measure("here", std::nullopt);
    group.barrier().get();
  }
  self.shutdown(true, 20s);
}

int member(const std::vector<std::string>& arguments) {
  take_part({.directory = arguments.at(0),
             .rank = 1,
             .repeats = std::stoi(arguments.at(1)),
             .passes = std::stoi(arguments.at(2))},
            nullptr);
  return 0;
}

void run(report& out, const options& chosen) {
  char pattern[] = "/tmp/ferry_ddp_overlap_XXXXXX";
  if (!::mkdtemp(pattern)) throw std::runtime_error("no temporary directory");
  const setting with{.directory = pattern, .repeats = chosen.repeats, .passes = chosen.quick ? 2 : 5};
  child_process other("member", {with.directory, std::to_string(with.repeats), std::to_string(with.passes)});
  take_part(with, &out);
  other.stop();
  if (std::system(("rm -r " + with.directory).c_str()) != 0) out.say("left behind: " + with.directory);
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"member", member}});
  const options chosen = read_options(argc, argv, "ddp_overlap: communication hidden behind the pass of nn::ddp");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(300));
  try {
    report out("ddp_overlap", chosen);
    run(out, chosen);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ddp_overlap: %s\n", e.what());
    return 1;
  }
}

// How much of the communication of data-parallel training goes on behind the pass that makes the gradients. Two processes whose
// connection goes through proxies that delay it and let so many bytes through as take as long as the pass computes.
//
// At rank 0, milliseconds of: the pass alone; the averages of its buckets alone, all begun at once; the pass of nn::ddp.
// Hidden is (pass + averages - ddp) / averages: 1 if the averages cost nothing, 0 if they only begin when the pass is over.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>
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
constexpr std::int64_t batch = 256;
constexpr auto link_delay = 1ms;

struct net {
  std::vector<ferry::nn::linear> all;

  net() {
    for (std::size_t i = 0; i != layers; ++i) all.emplace_back(width, width, ferry::nn::linear_options{.bias = false});
  }
  tensor operator()(tensor x) const {
    for (const ferry::nn::linear& each : all) x = ferry::relu(each(x));
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
  int passes = 10;  // of each kind in a repeat
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
    const tensor x = ferry::randn({batch, width});
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

    std::vector<double> first;
    for (int i = 0; i != 10; ++i) first.push_back(pass(plain));
    const double computes = quantile(first, 0.5);
    const tensor rate = ferry::zeros({1}, ferry::dtype::f64);
    rate.at<double>(0) = layers * layer_bytes / (0.9 * computes / 1000);
    group.broadcast(rate, 0).get();
    network.set_faults({.delay = link_delay, .bytes_per_second = static_cast<std::uint64_t>(rate.at<double>(0))});
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
    group.barrier().get();
    if (out) {
      const auto samples = static_cast<std::size_t>(with.repeats * with.passes);
      out->section(fmt::format("{} layers of {} x {}, a bucket each; a link of {:.0f} MB/s and {} ms", layers, width,
                               width, rate.at<double>(0) / 1e6, link_delay.count()));
      out->add("pass", pass_alone, "ms", "", nullptr, samples);
      out->add("averages", averages_alone, "ms", "", nullptr, samples);
      out->add("ddp", both, "ms", "", nullptr, samples);
      out->add("hidden", hidden, "of the averages", "", nullptr, samples, target{0.7, true, false});
    }
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
  const setting with{.directory = pattern, .repeats = chosen.repeats, .passes = chosen.quick ? 4 : 10};
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

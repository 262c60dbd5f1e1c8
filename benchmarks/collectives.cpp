// all_reduce of 1 KiB to 64 MiB among processes of this machine, beside Gloo over TCP where it is installed.
//
// Microseconds of one all_reduce at rank 0, and the bus bandwidth in the definition of nccl-tests (bytes / time * 2(n-1)/n).
// Over `shm` the members share memory (docs/groups.md). Processes are not pinned. With more processes than processors the figures measure the scheduler.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ferry/ferry.hpp>

#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#ifdef FERRY_BENCH_GLOO
  #include "peers/gloo_group.hpp"
#endif

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

struct size_case {
  const char* name;
  std::size_t bytes;
  int iterations;  // of a repeat; all members make as many
};
constexpr size_case sizes[] = {
    {"1KiB", 1U << 10U, 400}, {"64KiB", 64U << 10U, 300}, {"1MiB", 1U << 20U, 60}, {"64MiB", 64U << 20U, 4}};

struct setting {
  std::string directory;
  std::string transport;
  int rank = 0;
  int size = 2;
  int repeats = 5;
  bool quick = false;
  bool alone = false;
  std::string filter;
};

// The same on every member; rank 0 has a report.
void take_part(const setting& with, report* out) {
  ferry::worker_config config;
  config.name = "member" + std::to_string(with.rank);
  config.rank = with.rank;
  config.world_size = with.size;
  config.init_method = "file://" + with.directory + "/ferry_" + with.transport + std::to_string(with.size);
  config.transports = {with.transport};
  config.transport.bind = "127.0.0.1";
  config.init_timeout = 60s;
  config.exit_timeout = 20s;
  ferry::worker self = ferry::init_rpc(config);
  {
    const ferry::process_group group(self);
#ifdef FERRY_BENCH_GLOO
    std::optional<gloo_group> gloo;
    const std::string meeting = with.directory + "/gloo_" + with.transport + std::to_string(with.size);
    if (with.rank == 0 && std::system(("mkdir -p " + meeting).c_str()) != 0) throw std::runtime_error("no directory");
    group.barrier().get();
    if (!with.alone) gloo.emplace(meeting, with.rank, with.size);
#endif
    for (const size_case& size : sizes) {
      const std::string name = with.transport + "/" + std::to_string(with.size) + " processes/" + size.name;
      if (!with.filter.empty() && name.find(with.filter) == std::string::npos) continue;
      const ferry::tensor t = ferry::zeros({static_cast<std::int64_t>(size.bytes / sizeof(float))});
      const int iterations = with.quick ? std::max(size.iterations / 5, 2) : size.iterations;
      timing own;
      timing baseline;
      const auto measure = [&](timing& into, auto&& once) {
        group.barrier().get();
        once();
        std::vector<double> microseconds;
        for (int i = 0; i != iterations; ++i) {
          const auto begin = clock::now();
          once();
          microseconds.push_back(std::chrono::duration<double, std::micro>(clock::now() - begin).count());
        }
        into.add(microseconds);
      };
      for (int repeat = 0; repeat != with.repeats; ++repeat) {
#ifdef FERRY_BENCH_GLOO
        if (gloo) measure(baseline, [&] { gloo->all_reduce(t.data<float>(), static_cast<std::size_t>(t.numel())); });
#endif
        measure(own, [&] { group.all_reduce(t).get(); });
      }
      if (!out) continue;
      const ferry::group_plan plan = group.plan(ferry::collective::all_reduce, size.bytes);
      out->section(to_string(plan));
      // Through shared memory: five times as fast up to 64 KiB, three times above.
      double ratio = 1.0;
      if (plan.use == ferry::algorithm::shared && with.size == 2) ratio = size.bytes <= (64U << 10U) ? 0.2 : 1.0 / 3;
      out->add(name, own, "gloo, tcp", baseline.samples != 0 ? &baseline : nullptr, target{ratio, false, true});
      figure bus;
      bus.name = name + "/busbw";
      bus.value = static_cast<double>(size.bytes) / own.p50.median() / 1000 * plan.busbw_factor;
      bus.unit = "GB/s";
      bus.n = own.samples;
      out->add(bus);
    }
    group.barrier().get();
  }
  self.shutdown(true, 20s);
}

int member(const std::vector<std::string>& arguments) {
  setting with;
  with.directory = arguments.at(0);
  with.transport = arguments.at(1);
  with.rank = std::stoi(arguments.at(2));
  with.size = std::stoi(arguments.at(3));
  with.repeats = std::stoi(arguments.at(4));
  with.quick = arguments.at(5) == "quick";
  with.alone = arguments.at(6) == "alone";
  with.filter = arguments.at(7) == "-" ? "" : arguments.at(7);
  take_part(with, nullptr);
  return 0;
}

void run(report& out, const options& chosen, const std::string& transport, int size) {
  char pattern[] = "/tmp/ferry_collectives_XXXXXX";
  if (!::mkdtemp(pattern)) throw std::runtime_error("no temporary directory");
  setting with;
  with.directory = pattern;
  with.transport = transport;
  with.size = size;
  with.repeats = chosen.repeats;
  with.quick = chosen.quick;
  with.alone = chosen.alone;
  with.filter = chosen.filters.empty() ? "" : chosen.filters.front();
  std::vector<child_process> children;
  for (int rank = 1; rank != size; ++rank) {
    children.emplace_back(
        "member", std::vector<std::string>{with.directory, transport, std::to_string(rank), std::to_string(size),
                                           std::to_string(with.repeats), with.quick ? "quick" : "full",
                                           with.alone ? "alone" : "beside", with.filter.empty() ? "-" : with.filter});
  }
  take_part(with, &out);
  for (child_process& each : children) each.stop();
  if (std::system(("rm -r " + with.directory).c_str()) != 0) out.say("left behind: " + with.directory);
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"member", member}});
  const options chosen = read_options(argc, argv, "collectives: all_reduce among processes, beside Gloo");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(400));
  try {
    report out("collectives", chosen);
#ifndef FERRY_BENCH_GLOO
    out.say("libgloo-dev was not installed when this was built: no baseline");
#endif
    for (const std::string transport : {"shm", "tcp", "unix"}) run(out, chosen, transport, 2);
    if (!chosen.quick) {
      run(out, chosen, "shm", 4);
      for (const int size : {4, 8}) run(out, chosen, "tcp", size);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "collectives: %s\n", e.what());
    return 1;
  }
}

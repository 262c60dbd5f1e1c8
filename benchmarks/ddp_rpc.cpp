// Hybrid training: embedding tables on parameter servers, reached by references and distributed autograd, and dense layers that the
// trainers average (ddp). A process for each trainer and each server, and this one drives.
//
// The workload is that of PyTorch's benchmark_ddp_rpc.py: a table of bags for each server, looked up one after the other by every
// trainer, five linear layers, batches of 2 to 50 bags made inside the timed part, 10 batches an epoch, SGD by a
// distributed_optimizer of each trainer's own. Two things differ: rates count the samples of all measured epochs, and iterations
// and samples are told apart. On the CPU; with more processes than processors the figures measure the scheduler.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <cereal/types/vector.hpp>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>

#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::tensor;
namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;

constexpr std::int64_t dense_inputs = 512;
constexpr int batches = 10;  // of an epoch
constexpr double percentiles[] = {50, 75, 90, 95};

struct workload {
  int trainers = 8;
  int servers = 8;
  std::int64_t rows = 300;  // of a table
  std::int64_t width = 64;
  int warmup = 5;  // epochs
  int epochs = 100;
  bool concurrent = false;  // lookups

  template <class Archive>
  void serialize(Archive& archive) {
    archive(trainers, servers, rows, width, warmup, epochs, concurrent);
  }
};

struct trained {
  std::vector<double> seconds;  // of each measured epoch
  std::int64_t samples = 0;     // of all of them

  template <class Archive>
  void serialize(Archive& archive) {
    archive(seconds, samples);
  }
};

std::string trainer_name(int rank) { return "trainer" + std::to_string(rank); }
std::string server_name(int rank) { return "ps" + std::to_string(rank); }

// A server's side --------------------------------------------------------------------------------------------------

nn::embedding_bag make_table(std::int64_t rows, std::int64_t width) {
  return nn::embedding_bag(rows, width, {.mode = ferry::bag_mode::sum});
}
tensor lookup(const nn::embedding_bag& table, const tensor& indices, const tensor& offsets) {
  return table(indices, offsets);
}
ferry::rref<tensor> weight_of(const nn::embedding_bag& table) { return ferry::rref<tensor>(table.weight); }

// A trainer's side -------------------------------------------------------------------------------------------------

struct dense_layers {
  nn::linear first{dense_inputs, 256};
  nn::linear second{256, 128};
  nn::linear third{128, 64};
  nn::linear fourth{64, 32};
  nn::linear fifth{32, 8};

  tensor operator()(const tensor& x) const { return fifth(fourth(third(ferry::relu(second(first(x)))))); }
  template <class Visit>
  void visit_members(Visit&& visit) {
    visit("first", first);
    visit("second", second);
    visit("third", third);
    visit("fourth", fourth);
    visit("fifth", fifth);
  }
};

struct batch {
  tensor indices;
  tensor offsets;
  tensor targets;
};
batch make_batch(std::mt19937_64& random, std::int64_t rows) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  std::vector<std::int64_t> indices(static_cast<std::size_t>(between(20, 50)));
  for (std::int64_t& each : indices) each = between(0, rows - 1);
  std::vector<std::int64_t> offsets;
  for (std::int64_t start = 0; start < static_cast<std::int64_t>(indices.size()); start += between(1, 10)) {
    offsets.push_back(start);
  }
  std::vector<std::int64_t> targets(offsets.size());
  for (std::int64_t& each : targets) each = between(0, 7);
  return {ferry::from_vector(indices), ferry::from_vector(offsets), ferry::from_vector(targets)};
}

tensor look_up(const std::vector<ferry::rref<nn::embedding_bag>>& tables, const batch& of, bool concurrent) {
  std::vector<tensor> columns;
  if (concurrent) {
    std::vector<ferry::future<tensor>> pending;
    for (const auto& each : tables) pending.push_back(each.rpc_async<lookup>(of.indices, of.offsets));
    for (const auto& each : pending) columns.push_back(each.get());
  } else {
    for (const auto& each : tables) columns.push_back(each.rpc_sync<lookup>(of.indices, of.offsets));
  }
  return ferry::cat(columns, 1);
}

// Called by the master, at each trainer.
trained train(const workload& with, int rank, const std::vector<ferry::rref<nn::embedding_bag>>& tables) {
  std::vector<std::string> names;
  for (int each = 0; each != with.trainers; ++each) names.push_back(trainer_name(each));
  const ferry::process_group group((ferry::members(names)));
  nn::ddp dense(dense_layers(), group);
  std::vector<ferry::rref<tensor>> parameters;
  for (const auto& each : tables) parameters.push_back(each.rpc_sync<weight_of>());
  for (const tensor& each : dense.parameters()) parameters.emplace_back(each);
  ferry::distributed_optimizer<ferry::sgd> optimizer(parameters, {.lr = 0.05});
  std::mt19937_64 random(static_cast<std::uint64_t>(rank));
  trained result;
  for (int epoch = 0; epoch != with.warmup + with.epochs; ++epoch) {
    std::int64_t samples = 0;
    const auto begin = clock::now();
    for (int i = 0; i != batches; ++i) {
      const batch next = make_batch(random, with.rows);
      const dist::context pass;
      const tensor loss = ferry::cross_entropy(dense(look_up(tables, next, with.concurrent)), next.targets);
      pass.backward(loss);
      optimizer.step(pass.id());
      samples += next.targets.numel();
    }
    if (epoch < with.warmup) continue;
    result.seconds.push_back(std::chrono::duration<double>(clock::now() - begin).count());
    result.samples += samples;
  }
  group.barrier().get();  // others may still average
  return result;
}

// Processes --------------------------------------------------------------------------------------------------------

ferry::worker join(const std::string& meeting, const std::string& name, int rank, int size) {
  return ferry::init_rpc({.name = name,
                          .rank = rank,
                          .world_size = size,
                          .init_method = "file://" + meeting,
                          .init_timeout = 120s,
                          .exit_timeout = std::chrono::minutes(30)});
}

// Trainers and servers serve until all is done.
int serve(const std::vector<std::string>& arguments) {
  ferry::worker self = join(arguments.at(0), arguments.at(1), std::stoi(arguments.at(2)), std::stoi(arguments.at(3)));
  self.shutdown();
  return 0;
}

// Linear between the two values next to it.
double percentile(std::vector<double> values, double which) {
  std::sort(values.begin(), values.end());
  const double at = which / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

// Adds the figures, and returns their line of the table.
std::string show(report& out, const std::string& label, const std::vector<double>& seconds, double samples_of_epoch,
                 double iterations_of_epoch) {
  std::string line = fmt::format("{:>8}:", label);
  for (const double which : percentiles) {
    const double value = percentile(seconds, which);
    line += fmt::format("  p{:02}:  {:.3f}s  {:6.0f}/s", static_cast<int>(which), value, samples_of_epoch / value);
    const std::string name = fmt::format("{}/p{:02}", label, static_cast<int>(which));
    const auto add = [&](const std::string& what, double figure_value, const std::string& unit) {
      figure made;
      made.name = name + what;
      made.value = figure_value;
      made.unit = unit;
      made.n = seconds.size();
      out.add(made);
    };
    add("", value * 1e3, "ms/epoch");
    add("/iterations", iterations_of_epoch / value, "iterations/s");
    add("/samples", samples_of_epoch / value, "samples/s");
  }
  return line;
}

void run(report& out, const workload& with) {
  char pattern[] = "/tmp/ferry_ddp_rpc_XXXXXX";
  if (!::mkdtemp(pattern)) throw std::runtime_error("no temporary directory");
  const std::string directory = pattern;
  const std::string meeting = directory + "/store";
  const int size = with.trainers + with.servers + 1;
  std::vector<child_process> children;
  for (int rank = 0; rank != size - 1; ++rank) {
    const std::string name = rank < with.trainers ? trainer_name(rank) : server_name(rank - with.trainers);
    children.emplace_back("serve", std::vector<std::string>{meeting, name, std::to_string(rank), std::to_string(size)});
  }
  {
    ferry::worker self = join(meeting, "master", size - 1, size);
    {
      std::vector<ferry::rref<nn::embedding_bag>> tables;
      for (int rank = 0; rank != with.servers; ++rank) {
        tables.push_back(self.remote<make_table>(server_name(rank), with.rows, with.width));
      }
      std::vector<ferry::future<trained>> pending;
      for (int rank = 0; rank != with.trainers; ++rank) {
        const std::string name = trainer_name(rank);
        pending.push_back(self.rpc_async<train>({name, {.timeout = ferry::no_timeout}}, with, rank, tables));
      }
      std::vector<double> all;
      double samples = 0;
      std::string table = "\n" + std::string(10, ' ');
      for (std::size_t i = 0; i != std::size(percentiles); ++i)
        table += fmt::format("{:>14}{:>10}", "s/epoch", "samples/s");
      out.section(fmt::format("{} trainers, {} servers, {} lookups", with.trainers, with.servers,
                              with.concurrent ? "concurrent" : "sequential"));
      for (int rank = 0; rank != with.trainers; ++rank) {
        const trained one = pending[static_cast<std::size_t>(rank)].get();
        const double of_epoch = static_cast<double>(one.samples) / with.epochs;
        table += "\n" + show(out, "Trainer" + std::to_string(rank), one.seconds, of_epoch, batches);
        all.insert(all.end(), one.seconds.begin(), one.seconds.end());
        samples += of_epoch;
      }
      table += "\n" + show(out, "All", all, samples, static_cast<double>(batches) * with.trainers);
      out.say(table);
    }
    self.shutdown();
  }
  for (child_process& each : children) each.stop();
  if (std::system(("rm -r " + directory).c_str()) != 0) out.say("left behind: " + directory);
}

// Takes the options of this benchmark out of the command line.
workload read_workload(std::vector<char*>& arguments, bool& given) {
  workload with;
  with.width = 0;
  for (std::size_t i = 1; i != arguments.size();) {
    const std::string_view name = arguments[i];
    std::size_t used = 2;
    const auto number = [&] {
      const std::string_view text = i + 1 == arguments.size() ? "" : arguments[i + 1];
      int value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size() || value < 1)
        throw std::invalid_argument(fmt::format("{} needs a number from 1", name));
      return value;
    };
    if (name == "--trainers") {
      with.trainers = number();
      given = true;
    } else if (name == "--servers") {
      with.servers = number();
      given = true;
    } else if (name == "--embeddings") {
      with.rows = number();
    } else if (name == "--dim") {
      with.width = number();
    } else if (name == "--warmup") {
      with.warmup = number();
    } else if (name == "--epochs") {
      with.epochs = number();
    } else if (name == "--concurrent") {
      with.concurrent = true;
      used = 1;
    } else {
      ++i;
      continue;
    }
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                    arguments.begin() + static_cast<std::ptrdiff_t>(i + used));
  }
  return with;
}

// The columns of all tables together are the inputs of the dense layers.
void fit(workload& with) {
  if (with.width == 0) with.width = dense_inputs / with.servers;
  if (with.width * with.servers != dense_inputs) {
    throw std::invalid_argument(
        fmt::format("{} servers with tables of {} columns do not make the {} inputs of the dense layers", with.servers,
                    with.width, dense_inputs));
  }
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"serve", serve}});
  try {
    std::vector<char*> arguments(argv, argv + argc);
    bool given = false;
    workload with = read_workload(arguments, given);
    const options chosen =
        read_options(static_cast<int>(arguments.size()), arguments.data(),
                     "ddp_rpc: training with embeddings on servers and averaged dense layers\n\n"
                     "  --trainers N  --servers N    processes; without them: 2 and 2, then 8 and 8\n"
                     "  --embeddings N  --dim N      rows (300) and columns (512 / servers) of a table\n"
                     "  --warmup N  --epochs N       epochs of 10 batches that do not count (5), and that do (100)\n"
                     "  --concurrent                 a batch is looked up in all tables at once");
    end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(1200));
    if (chosen.quick) {
      with.warmup = std::min(with.warmup, 2);
      with.epochs = std::min(with.epochs, 10);
    }
    if (given) fit(with);
    report out("ddp_rpc", chosen);
    if (given) {
      run(out, with);
      return 0;
    }
    for (const int each : {2, 8}) {
      if (chosen.quick && each == 8) continue;
      workload variant = with;
      variant.trainers = variant.servers = each;
      fit(variant);
      run(out, variant);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ddp_rpc: %s\n", e.what());
    return 1;
  }
}

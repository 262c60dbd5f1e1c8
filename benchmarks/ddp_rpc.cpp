// Hybrid training: embedding tables on parameter servers, reached by references and distributed autograd, and dense layers that the
// trainers average (ddp). A process for each trainer and each server, and this one drives; beside torch (peers/torch_ddp_rpc.py).
//
// The workload is that of PyTorch's benchmark_ddp_rpc.py: a table of bags for each server, looked up one after the other by every
// trainer, five linear layers, batches of 2 to 50 bags made inside the timed part, 10 batches an epoch, SGD by a
// distributed_optimizer of each trainer's own. Three things differ: rates count the samples of all measured epochs, iterations
// and samples are told apart, and every option is in effect in every process. All processes are children of this one and meet in a
// file, so there is no address to choose. With more processes than processors the figures measure the scheduler, too.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ferry/device/cuda.hpp>

#include "support/hybrid.hpp"
#include "support/hybrid_torch.hpp"
#include "support/options.hpp"
#include "support/process.hpp"
#include "support/progress.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"

namespace ferry_bench {
namespace {

constexpr double percentiles[] = {50, 75, 90, 95};
constexpr std::pair<const char*, double trained::*> phases[] = {
    {"forward", &trained::forward}, {"backward", &trained::backward}, {"step", &trained::step}};
constexpr double most_difference = 1e-5;  // of a loss from torch's

struct request {
  hybrid with;
  bool sized = false;    // --trainers or --servers
  bool compare = false;  // with torch
  bool check = false;
};

// Linear between the two values next to it.
double percentile(std::vector<double> values, double which) {
  std::sort(values.begin(), values.end());
  const double at = which / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

std::string name_of(const hybrid& with) {
  std::string name = fmt::format("{}+{}", with.trainers, with.servers);
  for (const auto& [set, word] : {std::pair{with.concurrent, "concurrent"}, std::pair{with.sparse, "sparse"},
                                  std::pair{with.adagrad, "adagrad"}, std::pair{with.cuda, "cuda"}}) {
    if (set) name.append(",").append(word);
  }
  return name;
}

std::string title_of(const hybrid& with) {
  return fmt::format(
      "{} trainers, {} servers and a master; tables {} x {}, {} lookups, {} gradients, {} for the tables, on {}",
      with.trainers, with.servers, with.rows, with.width, with.concurrent ? "concurrent" : "sequential",
      with.sparse ? "sparse" : "dense", with.adagrad ? "row-wise Adagrad" : "SGD", with.cuda ? "device 0" : "the CPU");
}

// One training ---------------------------------------------------------------------------------------------------------

std::vector<trained> train_ferry(const hybrid& with, std::string& route) {
  progress shown("ferry " + name_of(with), with.warmup + with.epochs);
  return train_hybrid(
      with, [&](int done) { shown.at(done); }, [&](const std::string& text) { route = text; });
}

std::vector<trained> train_torch(const torch_hybrid& torch, const hybrid& with, const std::string& beginning,
                                 std::string& library) {
  progress shown("torch " + name_of(with), with.warmup + with.epochs);
  return torch.train(
      with, beginning, [&](int done) { shown.at(done); }, library);
}

// Alone ------------------------------------------------------------------------------------------------------------

// Adds the figures, and returns the next line of the table.
std::string show(report& out, const std::string& label, const std::string& prefix, const std::vector<double>& seconds,
                 double samples_of_epoch, double iterations_of_epoch) {
  std::string line = fmt::format("\n{:>10}:", label);
  for (const double which : percentiles) {
    const double value = percentile(seconds, which);
    line += fmt::format("  p{:02}:  {:.3f}s  {:6.0f}/s", static_cast<int>(which), value, samples_of_epoch / value);
    const auto add = [&](const std::string& what, double figure_value, const std::string& unit) {
      figure made;
      made.name = fmt::format("{}/{}/p{:02}{}", prefix, label, static_cast<int>(which), what);
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

void run_alone(report& out, const hybrid& with) {
  const std::string name = name_of(with);
  out.section(title_of(with));
  std::string route;
  const std::vector<trained> all = train_ferry(with, route);
  std::string table = fmt::format("\n{:12}", "");
  for (std::size_t i = 0; i != std::size(percentiles); ++i)
    table += fmt::format("{:>14}{:>10}", "s/epoch", "samples/s");
  double samples = 0;
  for (std::size_t rank = 0; rank != all.size(); ++rank) {
    const double of_epoch = static_cast<double>(all[rank].samples) / with.epochs;
    table += show(out, fmt::format("Trainer{}", rank), name, all[rank].seconds, of_epoch, hybrid_batches);
    samples += of_epoch;
  }
  table += show(out, "All", name, seconds_of_all(all), samples, static_cast<double>(hybrid_batches) * with.trainers);
  const auto total = [&](const std::string& what, double value, const std::string& unit) {
    figure made;
    made.name = name + "/" + what;
    made.value = value;
    made.unit = unit;
    made.n = all.size() * static_cast<std::size_t>(with.epochs);
    out.add(made);
  };
  total("iterations", iterations_per_second(all), "iterations/s");
  total("samples", samples_per_second(all), "samples/s");
  for (const auto& [what, phase] : phases) total(what, milliseconds_of(all, phase), "ms/iteration");
  out.say(table);
  out.say(route);
}

// Beside torch -----------------------------------------------------------------------------------------------------

void run_beside(report& out, const options& chosen, const hybrid& with, const torch_hybrid& torch) {
  out.section(title_of(with));
  repeated samples[2];
  repeated iterations[2];
  repeated epochs[std::size(percentiles)][2];
  repeated of_phases[std::size(phases)][2];
  std::string route;
  std::string library;
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    for (const int which : {0, 1}) {
      const std::vector<trained> all = which == 0 ? train_ferry(with, route) : train_torch(torch, with, "", library);
      samples[which].add(samples_per_second(all));
      iterations[which].add(iterations_per_second(all));
      for (std::size_t i = 0; i != std::size(percentiles); ++i) {
        epochs[i][which].add(percentile(seconds_of_all(all), percentiles[i]) * 1e3);
      }
      for (std::size_t i = 0; i != std::size(phases); ++i)
        of_phases[i][which].add(milliseconds_of(all, phases[i].second));
    }
  }
  const std::string name = name_of(with);
  const auto n = static_cast<std::size_t>(chosen.repeats) * static_cast<std::size_t>(with.trainers * with.epochs);
  const bool usual = with.trainers == 8 && with.servers == 8 && name == "8+8";
  out.add(name + "/samples", samples[0], "samples/s", "torch", &samples[1], n,
          usual ? std::optional(target{8, true, true}) : std::nullopt);
  out.add(name + "/iterations", iterations[0], "iterations/s", "torch", &iterations[1], n);
  for (std::size_t i = 0; i != std::size(percentiles); ++i) {
    out.add(fmt::format("{}/epoch/p{:02}", name, static_cast<int>(percentiles[i])), epochs[i][0], "ms", "torch",
            &epochs[i][1], n);
  }
  for (std::size_t i = 0; i != std::size(phases); ++i) {
    out.add(fmt::format("{}/{}", name, phases[i].first), of_phases[i][0], "ms", "torch", &of_phases[i][1], n);
  }
  out.say("ferry: " + route);
  out.say(library);
  if (with.adagrad) out.say("torch has no row-wise Adagrad: its own keeps a number for each element");
}

// The mean loss of the last epoch.
double final_loss(const std::vector<trained>& all) {
  double sum = 0;
  for (const trained& each : all) sum += std::accumulate(each.losses.end() - hybrid_batches, each.losses.end(), 0.0);
  return sum / hybrid_batches / static_cast<double>(all.size());
}

// From the same weights, by the same batches. One trainer: the curves are compared; several update the tables in any order, so that
// the final losses of several runs are. Returns whether they agree: for several trainers, whether the ranges overlap.
bool run_check(report& out, const options& chosen, hybrid with, const torch_hybrid& torch) {
  with.checked = true;
  out.section(title_of(with));
  const temporary_directory beginning;
  write_beginning(with, beginning.path());
  std::string route;
  std::string library;
  if (with.trainers == 1) {
    const std::vector<float> own = train_ferry(with, route).front().losses;
    const std::vector<float> other = train_torch(torch, with, beginning.path(), library).front().losses;
    if (own.size() != other.size()) throw std::runtime_error("torch gave another number of losses");
    double most = 0;
    for (std::size_t i = 0; i != own.size(); ++i) most = std::max(most, std::abs(double{own[i]} - double{other[i]}));
    out.say(fmt::format("{} losses, from {:.6f} to {:.6f}; torch: from {:.6f} to {:.6f}", own.size(), own.front(),
                        own.back(), other.front(), other.back()));
    figure made;
    made.name = name_of(with) + "/check/largest-difference";
    made.value = most * 1e6;
    made.unit = "1e-6";
    made.n = own.size();
    out.add(made, target{most_difference * 1e6, false, false});
    out.say(library);
    return most <= most_difference;
  }
  repeated own;
  repeated other;
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    own.add(final_loss(train_ferry(with, route)));
    other.add(final_loss(train_torch(torch, with, beginning.path(), library)));
  }
  out.add(name_of(with) + "/check/final-loss", own, "", "torch", &other, static_cast<std::size_t>(chosen.repeats));
  const bool inside = own.median() >= other.lowest() && own.median() <= other.highest();
  const bool apart = own.highest() < other.lowest() || own.lowest() > other.highest();
  out.say(fmt::format("final losses {:.6f} to {:.6f}, median {:.6f}; torch {:.6f} to {:.6f}: {}", own.lowest(),
                      own.highest(), own.median(), other.lowest(), other.highest(),
                      inside  ? "the median is inside"
                      : apart ? "APART"
                              : "the ranges overlap, the median is outside"));
  out.say(library);
  return !apart;
}

// Options ----------------------------------------------------------------------------------------------------------

// Takes the options of this benchmark out of the command line.
request read_request(std::vector<char*>& arguments) {
  request read;
  read.with.width = read.with.warmup = read.with.epochs = 0;  // not given
  for (std::size_t i = 1; i != arguments.size();) {
    const std::string_view name = arguments[i];
    std::size_t used = 1;
    const auto text = [&]() -> std::string_view {
      used = 2;
      if (i + 1 == arguments.size()) throw std::invalid_argument(fmt::format("{} needs a value", name));
      return arguments[i + 1];
    };
    const auto number = [&] {
      const std::string_view given = text();
      int value = 0;
      const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
      if (error != std::errc() || end != given.data() + given.size() || value < 1)
        throw std::invalid_argument(fmt::format("{} needs a number from 1", name));
      return value;
    };
    const auto peer = [&] {
      if (text() != "torch") throw std::invalid_argument(fmt::format("{} knows torch alone", name));
      return true;
    };
    if (name == "--trainers" || name == "--servers") {
      (name == "--trainers" ? read.with.trainers : read.with.servers) = number();
      read.sized = true;
    } else if (name == "--embeddings") {
      read.with.rows = number();
    } else if (name == "--dim") {
      read.with.width = number();
    } else if (name == "--warmup") {
      read.with.warmup = number();
    } else if (name == "--epochs") {
      read.with.epochs = number();
    } else if (name == "--transport") {
      read.with.transport = text();
    } else if (name == "--concurrent") {
      read.with.concurrent = true;
    } else if (name == "--sparse") {
      read.with.sparse = true;
    } else if (name == "--adagrad") {
      read.with.adagrad = true;
    } else if (name == "--cuda") {
      read.with.cuda = true;
    } else if (name == "--compare") {
      read.compare = peer();
    } else if (name == "--check") {
      read.check = peer();
    } else {
      ++i;
      continue;
    }
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i),
                    arguments.begin() + static_cast<std::ptrdiff_t>(i + used));
  }
  return read;
}

void complete(request& read, const options& chosen) {
  hybrid& with = read.with;
  if (read.check && !read.sized) with.trainers = 1;
  if (with.warmup == 0) with.warmup = chosen.quick ? 2 : 5;
  if (with.epochs == 0) with.epochs = chosen.quick ? 10 : read.check ? 20 : 100;
  if (with.cuda && ferry::device_traits<ferry::cuda>::count() == 0) {
    throw std::invalid_argument("--cuda: there is no GPU: " + ferry::device_traits<ferry::cuda>::obstacle());
  }
  if (with.cuda && (read.compare || read.check) && with.adagrad) {
    throw std::invalid_argument("--cuda --adagrad: not beside torch");
  }
}

// The columns of all tables together are the inputs of the dense layers.
hybrid fitted(hybrid with) {
  if (with.width == 0) with.width = hybrid_inputs / with.servers;
  if (with.width * with.servers != hybrid_inputs) {
    throw std::invalid_argument(
        fmt::format("{} servers with tables of {} columns do not make the {} inputs of the dense layers", with.servers,
                    with.width, hybrid_inputs));
  }
  return with;
}

constexpr const char* description =
    "ddp_rpc: training with embeddings on servers and averaged dense layers\n\n"
    "  --trainers N  --servers N    processes; without them: 2 and 2, then 8 and 8\n"
    "  --embeddings N  --dim N      rows (300) and columns (512 / servers) of a table\n"
    "  --warmup N  --epochs N       epochs of 10 batches that do not count (5), and that do (100)\n"
    "  --transport NAME             shm, unix or tcp; else the best\n"
    "  --concurrent                 a batch is looked up in all tables at once\n"
    "  --sparse                     sparse gradients of the tables\n"
    "  --adagrad                    row-wise Adagrad for the tables; else SGD\n"
    "  --cuda                       tables and dense layers on device 0, by device maps\n"
    "  --compare torch              the same by torch in turn, --repeats times each\n"
    "  --check torch                losses beside those of torch, from the same weights: the curve of one trainer, the "
    "final ones of\n"
    "                               more (--repeats times)";

int run(const request& read, const options& chosen) {
  std::vector<hybrid> sizes;
  if (read.sized || read.check) {
    sizes.push_back(fitted(read.with));
  } else {
    for (const int each : {2, 8}) {
      if (chosen.quick && each == 8) continue;
      hybrid with = read.with;
      with.trainers = with.servers = each;
      sizes.push_back(fitted(with));
    }
  }
  if (!read.compare && !read.check) {
    report out("ddp_rpc", chosen);
    for (const hybrid& each : sizes) run_alone(out, each);
    return 0;
  }
  const torch_hybrid torch;
  if (!torch.there()) {
    throw std::runtime_error("no torch: neither $PYTHON nor python3 can import it (Debian: python3-torch)");
  }
  report out("ddp_rpc", chosen);
  bool agree = true;
  for (const hybrid& each : sizes) {
    if (read.compare) run_beside(out, chosen, each, torch);
    if (read.check) agree = run_check(out, chosen, each, torch) && agree;
  }
  return agree ? 0 : 1;
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, {{"serve", serve_hybrid}});
  try {
    std::vector<char*> arguments(argv, argv + argc);
    request read = read_request(arguments);
    const options chosen = read_options(static_cast<int>(arguments.size()), arguments.data(), description);
    end_after(chosen.limit.count() != 0 ? chosen.limit
                                        : std::chrono::seconds(read.compare || read.check ? 7200 : 1200));
    complete(read, chosen);
    return run(read, chosen);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ddp_rpc: %s\n", e.what());
    return 1;
  }
}

#include "hybrid.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <cereal/types/vector.hpp>

#include <ferry/autograd.hpp>
#include <ferry/ferry.hpp>
#include <ferry/nn.hpp>
#include <ferry/ops/ops.hpp>
#include <ferry/optim.hpp>
#include <ferry/tensor/generator.hpp>

#include "process.hpp"
#include "statistics.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using ferry::tensor;
namespace nn = ferry::nn;
namespace dist = ferry::dist_autograd;

constexpr double learning_rate = 0.05;
constexpr std::uint64_t seed_of_dense_layers = 1000;

std::string trainer_name(int rank) { return "trainer" + std::to_string(rank); }
std::string server_name(int rank) { return "ps" + std::to_string(rank); }
ferry::device place_of(const hybrid& with) {
  return with.cuda ? ferry::device{ferry::device_kind::cuda, 0} : ferry::device();
}

// A server's side --------------------------------------------------------------------------------------------------

nn::embedding_bag make_table(const hybrid& with, int server) {
  ferry::generator source(static_cast<std::uint64_t>(server));
  return nn::embedding_bag(with.rows, with.width,
                           {.mode = ferry::bag_mode::sum, .sparse_gradient = with.sparse, .device = place_of(with)},
                           source);
}
tensor lookup(const nn::embedding_bag& table, const tensor& indices, const tensor& offsets) {
  return table(indices.to(table.weight.device()), offsets);
}
ferry::rref<tensor> weight_of(const nn::embedding_bag& table) { return ferry::rref<tensor>(table.weight); }

// A trainer's side -------------------------------------------------------------------------------------------------

struct dense_layers {
  nn::linear first;
  nn::linear second;
  nn::linear third;
  nn::linear fourth;
  nn::linear fifth;

  dense_layers(ferry::device where, ferry::generator source)
      : first(hybrid_inputs, 256, {.device = where}, source),
        second(256, 128, {.device = where}, source),
        third(128, 64, {.device = where}, source),
        fourth(64, 32, {.device = where}, source),
        fifth(32, 8, {.device = where}, source) {}
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

struct numbers_of_batch {
  std::vector<std::int64_t> indices;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> targets;
};
numbers_of_batch draw(std::mt19937_64& random, std::int64_t rows) {
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  numbers_of_batch drawn;
  drawn.indices.resize(static_cast<std::size_t>(between(20, 50)));
  for (std::int64_t& each : drawn.indices) each = between(0, rows - 1);
  const auto count = static_cast<std::int64_t>(drawn.indices.size());
  for (std::int64_t start = 0; start < count; start += between(1, 10)) drawn.offsets.push_back(start);
  drawn.targets.resize(drawn.offsets.size());
  for (std::int64_t& each : drawn.targets) each = between(0, 7);
  return drawn;
}

std::mt19937_64 randomness_of(int rank) { return std::mt19937_64(static_cast<std::uint64_t>(rank)); }
std::vector<numbers_of_batch> draw_epoch(const hybrid& with, int rank) {
  std::mt19937_64 random = randomness_of(rank);
  std::vector<numbers_of_batch> drawn;
  for (int i = 0; i != hybrid_batches; ++i) drawn.push_back(draw(random, with.rows));
  return drawn;
}

tensor look_up(const std::vector<ferry::rref<nn::embedding_bag>>& tables, const numbers_of_batch& of, bool concurrent) {
  const tensor indices = ferry::from_vector(of.indices);
  const tensor offsets = ferry::from_vector(of.offsets);
  std::vector<tensor> columns;
  if (concurrent) {
    std::vector<ferry::future<tensor>> pending;
    for (const auto& each : tables) pending.push_back(each.rpc_async<lookup>(indices, offsets));
    for (const auto& each : pending) columns.push_back(each.get());
  } else {
    for (const auto& each : tables) columns.push_back(each.rpc_sync<lookup>(indices, offsets));
  }
  return ferry::cat(columns, 1);
}

// SGD for all, in one call to each owner; or an optimizer for the tables, and one for the dense layers.
std::function<void(dist::context_id)> make_step(const hybrid& with, std::vector<ferry::rref<tensor>> tables,
                                                const std::vector<tensor>& dense) {
  std::vector<ferry::rref<tensor>> near;
  for (const tensor& each : dense) near.emplace_back(each);
  using all = ferry::distributed_optimizer<ferry::sgd>;
  using by_rows = ferry::distributed_optimizer<ferry::row_wise_adagrad>;
  if (with.adagrad) {
    auto of_tables = std::make_shared<by_rows>(std::move(tables), by_rows::options_type{.lr = learning_rate});
    auto of_dense = std::make_shared<all>(std::move(near), all::options_type{.lr = learning_rate});
    return [of_tables, of_dense](dist::context_id in) {
      of_tables->step(in);
      of_dense->step(in);
    };
  }
  tables.insert(tables.end(), near.begin(), near.end());
  auto of_all = std::make_shared<all>(std::move(tables), all::options_type{.lr = learning_rate});
  return [of_all](dist::context_id in) { of_all->step(in); };
}

std::atomic<int> epochs_done = 0;  // by trainer 0; at the master
void note_epoch(int done) { epochs_done = done; }

// Called by the master, at each trainer.
trained train(const hybrid& with, int rank, const std::vector<ferry::rref<nn::embedding_bag>>& tables) {
  std::vector<std::string> names;
  for (int each = 0; each != with.trainers; ++each) names.push_back(trainer_name(each));
  const ferry::process_group group((ferry::members(names)));
  const ferry::device place = place_of(with);
  nn::ddp dense(dense_layers(place, ferry::generator(seed_of_dense_layers)), group);
  std::vector<ferry::rref<tensor>> weights;
  for (const auto& each : tables) weights.push_back(each.rpc_sync<weight_of>());
  const auto step = make_step(with, weights, dense.parameters());
  const std::vector<numbers_of_batch> stored = with.checked ? draw_epoch(with, rank) : std::vector<numbers_of_batch>();
  std::mt19937_64 random = randomness_of(rank);
  trained result;
  for (int epoch = 0; epoch != with.warmup + with.epochs; ++epoch) {
    const bool measured = epoch >= with.warmup;
    std::int64_t samples = 0;
    const auto begin = clock::now();
    for (int i = 0; i != hybrid_batches; ++i) {
      const numbers_of_batch next = with.checked ? stored[static_cast<std::size_t>(i)] : draw(random, with.rows);
      const tensor targets = ferry::from_vector(next.targets).to(place);
      auto last = clock::now();
      const auto add_to = [&](double& sum) {
        const auto now = clock::now();
        if (measured) sum += std::chrono::duration<double>(now - last).count();
        last = now;
      };
      const dist::context pass;
      const tensor loss = ferry::cross_entropy(dense(look_up(tables, next, with.concurrent)), targets);
      add_to(result.forward);
      pass.backward(loss);
      add_to(result.backward);
      step(pass.id());
      add_to(result.step);
      samples += targets.numel();
      if (with.checked) result.losses.push_back(ferry::detach(loss).item<float>());
    }
    const double took = std::chrono::duration<double>(clock::now() - begin).count();
    if (rank == 0) ferry::notify<note_epoch>("master", epoch + 1);
    if (!measured) continue;
    result.seconds.push_back(took);
    result.samples += samples;
  }
  group.barrier().get();  // others may still average
  return result;
}

// Processes --------------------------------------------------------------------------------------------------------

// Nothing here has a time limit but the start: --limit ends the benchmark.
ferry::worker join(const std::string& meeting, int rank, const hybrid& with) {
  ferry::worker_config config;
  config.rank = rank;
  config.world_size = with.trainers + with.servers + 1;
  config.name = rank < with.trainers                  ? trainer_name(rank)
                : rank < with.trainers + with.servers ? server_name(rank - with.trainers)
                                                      : "master";
  config.init_method = "file://" + meeting;
  config.rpc_timeout = ferry::no_timeout;
  config.init_timeout = 120s;
  config.exit_timeout = std::chrono::minutes(60);
  if (!with.transport.empty()) config.transports = {with.transport};
  if (with.transport == "tcp") config.transport.bind = "127.0.0.1";
  if (with.cuda && rank < with.trainers) {
    for (int each = 0; each != with.servers; ++each) {
      config.set_device_map(server_name(each), {{"cuda:0", "cuda:0"}});
    }
  }
  return ferry::init_rpc(config);
}

std::vector<trained> lead(ferry::worker& self, const hybrid& with, const std::function<void(int)>& on_epoch,
                          const std::function<void(const std::string&)>& on_route) {
  epochs_done = 0;
  std::vector<ferry::rref<nn::embedding_bag>> tables;
  for (int rank = 0; rank != with.servers; ++rank) {
    tables.push_back(self.remote<make_table>(server_name(rank), with, rank));
  }
  std::vector<ferry::future<trained>> pending;
  for (int rank = 0; rank != with.trainers; ++rank) {
    pending.push_back(self.rpc_async<train>(trainer_name(rank), with, rank, tables));
  }
  std::vector<trained> results;
  for (const auto& each : pending) {
    while (!each.wait_for(100ms)) on_epoch(epochs_done);
    results.push_back(each.get());
  }
  on_route(to_string(self.route(server_name(0))));
  return results;
}

void write(const std::string& path, const auto& each_part) {
  std::ofstream file(path, std::ios::binary);
  each_part([&](const void* bytes, std::size_t size) {
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  });
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace

std::vector<double> seconds_of_all(const std::vector<trained>& all) {
  std::vector<double> seconds;
  for (const trained& each : all) seconds.insert(seconds.end(), each.seconds.begin(), each.seconds.end());
  return seconds;
}

double samples_per_second(const std::vector<trained>& all) {
  double rate = 0;
  for (const trained& each : all) {
    rate += static_cast<double>(each.samples) / std::accumulate(each.seconds.begin(), each.seconds.end(), 0.0);
  }
  return rate;
}
double milliseconds_of(const std::vector<trained>& all, double trained::*phase) {
  double sum = 0;
  std::size_t epochs = 0;
  for (const trained& each : all) {
    sum += each.*phase;
    epochs += each.seconds.size();
  }
  return sum * 1e3 / static_cast<double>(epochs * hybrid_batches);
}
double iterations_per_second(const std::vector<trained>& all) {
  double rate = 0;
  for (const trained& each : all) {
    rate += static_cast<double>(each.seconds.size()) * hybrid_batches /
            std::accumulate(each.seconds.begin(), each.seconds.end(), 0.0);
  }
  return rate;
}

int serve_hybrid(const std::vector<std::string>& arguments) {
  hybrid with;
  with.trainers = std::stoi(arguments.at(2));
  with.servers = std::stoi(arguments.at(3));
  with.cuda = arguments.at(4) == "cuda";
  with.transport = arguments.at(5) == "-" ? "" : arguments.at(5);
  ferry::worker self = join(arguments.at(0), std::stoi(arguments.at(1)), with);
  self.shutdown();
  return 0;
}

std::vector<trained> train_hybrid(const hybrid& with, const std::function<void(int)>& on_epoch,
                                  const std::function<void(const std::string&)>& on_route) {
  const temporary_directory directory;
  const std::string meeting = directory.path() + "/store";
  const int master = with.trainers + with.servers;
  std::vector<child_process> children;
  for (int rank = 0; rank != master; ++rank) {
    children.emplace_back("serve",
                          std::vector<std::string>{meeting, std::to_string(rank), std::to_string(with.trainers),
                                                   std::to_string(with.servers), with.cuda ? "cuda" : "cpu",
                                                   with.transport.empty() ? "-" : with.transport});
  }
  ferry::worker self = join(meeting, master, with);
  try {
    std::vector<trained> results = lead(self, with, on_epoch, on_route);
    self.shutdown();
    for (child_process& each : children) each.stop();
    return results;
  } catch (...) {
    for (child_process& each : children) each.signal(SIGKILL);  // they would wait for each other
    throw;
  }
}

void write_beginning(const hybrid& with, const std::string& directory) {
  hybrid here = with;
  here.cuda = false;
  write(directory + "/weights", [&](const auto& part) {
    const auto add = [&](const tensor& t) {
      part(t.data<float>(), static_cast<std::size_t>(t.numel()) * sizeof(float));
    };
    for (int server = 0; server != with.servers; ++server) add(make_table(here, server).weight);
    dense_layers dense{ferry::device(), ferry::generator(seed_of_dense_layers)};
    for (const tensor& each : nn::parameters(dense)) add(each);
  });
  for (int rank = 0; rank != with.trainers; ++rank) {
    write(directory + "/batches" + std::to_string(rank), [&](const auto& part) {
      const auto add = [&](const std::vector<std::int64_t>& of) { part(of.data(), of.size() * sizeof(std::int64_t)); };
      for (const numbers_of_batch& each : draw_epoch(with, rank)) {
        add({static_cast<std::int64_t>(each.indices.size()), static_cast<std::int64_t>(each.offsets.size())});
        add(each.indices);
        add(each.offsets);
        add(each.targets);
      }
    });
  }
}

temporary_directory::temporary_directory() {
  char pattern[] = "/tmp/ferry_bench_XXXXXX";
  if (::mkdtemp(pattern) == nullptr) throw std::system_error(errno, std::generic_category(), "no temporary directory");
  path_ = pattern;
}
temporary_directory::~temporary_directory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ferry_bench

#pragma once

// Hybrid training, as PyTorch's benchmark_ddp_rpc.py does it: tables of embeddings on parameter servers, reached by references and
// distributed autograd, and dense layers that the trainers average (ddp). A process for each trainer and each server; this one leads.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ferry_bench {

inline constexpr int hybrid_batches = 10;           ///< of an epoch
inline constexpr std::int64_t hybrid_inputs = 512;  ///< of the dense layers: the columns of all tables together

/// What is trained, and how. Every process gets all of it.
struct hybrid {
  int trainers = 8;
  int servers = 8;
  std::int64_t rows = 300;  ///< of a table
  std::int64_t width = 64;
  int warmup = 5;  ///< epochs
  int epochs = 100;
  bool concurrent = false;  ///< lookups
  bool sparse = false;      ///< gradients of the tables
  bool adagrad = false;     ///< for the tables, by rows; else SGD for all
  bool cuda = false;        ///< tables and dense layers on device 0
  bool checked = false;     ///< the same batches in each epoch, and losses are kept
  std::string transport;    ///< empty: the best

  template <class Archive>
  void serialize(Archive& archive) {
    archive(trainers, servers, rows, width, warmup, epochs, concurrent, sparse, adagrad, cuda, checked, transport);
  }
};

/// Of one trainer.
struct trained {
  std::vector<double> seconds;  ///< of each measured epoch
  std::int64_t samples = 0;     ///< of all of them
  double forward = 0;           ///< seconds of all of them in the forward pass, with its lookups,
  double backward = 0;          ///< the distributed pass, with its averages,
  double step = 0;              ///< and the optimizer
  std::vector<float> losses;    ///< of each batch, where they are kept

  template <class Archive>
  void serialize(Archive& archive) {
    archive(seconds, samples, forward, backward, step, losses);
  }
};

/// The measured epochs of all trainers, and what all of them together do in a second.
std::vector<double> seconds_of_all(const std::vector<trained>& all);
double samples_per_second(const std::vector<trained>& all);
double iterations_per_second(const std::vector<trained>& all);
/// Of an iteration of one trainer, the mean of all.
double milliseconds_of(const std::vector<trained>& all, double trained::*phase);

/// The role "serve": a trainer or a server, until all is done.
int serve_hybrid(const std::vector<std::string>& arguments);

/// Starts the processes, trains, and ends them. By trainer. `on_epoch` is called now and then with the number of epochs that are done,
/// `on_route` with what the processes talk over.
std::vector<trained> train_hybrid(const hybrid& with, const std::function<void(int)>& on_epoch,
                                  const std::function<void(const std::string&)>& on_route);

/// Writes what such a training begins with, for a peer: `weights`, f32, the tables by server and then the dense parameters as they
/// are visited, and `batchesR` for each trainer R, i64: number of indices and of bags, indices, offsets, targets of each batch.
void write_beginning(const hybrid& with, const std::string& directory);

/// A directory that is removed with its files in the end.
class temporary_directory {
 public:
  temporary_directory();
  ~temporary_directory();
  temporary_directory(const temporary_directory&) = delete;
  temporary_directory& operator=(const temporary_directory&) = delete;
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace ferry_bench

#include "hybrid_torch.hpp"

#include <cstddef>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

namespace ferry_bench {
namespace {

std::string arguments_of(const hybrid& with, const std::string& beginning) {
  std::string arguments =
      fmt::format("--raw --trainers {} --servers {} --embeddings {} --dim {} --warmup {} --epochs {}", with.trainers,
                  with.servers, with.rows, with.width, with.warmup, with.epochs);
  if (with.concurrent) arguments += " --concurrent";
  if (with.sparse) arguments += " --sparse";
  if (with.adagrad) arguments += " --adagrad";
  if (with.cuda) arguments += " --cuda";
  if (!beginning.empty()) arguments += fmt::format(" --start '{}'", beginning);
  return arguments;
}

}  // namespace

// Its lines: "library TEXT", "epoch N", "trainer RANK SAMPLES FORWARD BACKWARD STEP SECONDS...", "losses RANK LOSSES...".
std::vector<trained> torch_hybrid::train(const hybrid& with, const std::string& beginning,
                                         const std::function<void(int)>& on_epoch, std::string& library) const {
  std::vector<trained> results(static_cast<std::size_t>(with.trainers));
  script_.run(arguments_of(with, beginning), [&](const std::string& line) {
    std::istringstream words(line);
    std::string what;
    std::size_t number = 0;
    words >> what;
    if (what == "library") {
      std::getline(words >> std::ws, library);
    } else if (what == "epoch" && words >> number) {
      on_epoch(static_cast<int>(number));
    } else if (what == "trainer" && words >> number) {
      trained& of = results.at(number);
      words >> of.samples >> of.forward >> of.backward >> of.step;
      for (double each = 0; words >> each;) of.seconds.push_back(each);
    } else if (what == "losses" && words >> number) {
      for (float each = 0; words >> each;) results.at(number).losses.push_back(each);
    }
  });
  for (const trained& each : results) {
    if (each.seconds.size() != static_cast<std::size_t>(with.epochs)) throw std::runtime_error("torch gave no figures");
  }
  return results;
}

}  // namespace ferry_bench

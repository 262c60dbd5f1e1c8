// Runs fuzz targets over their seeds and the inputs of the corpus, without libFuzzer.
//
//   replay TARGET [FILE]...   the target's seeds, then these inputs; of FILE.tar, an archive, all that is in it
//   replay TARGET FOLDER      the target's seeds, then the inputs of the archive FOLDER/<target>.tar
//   replay --seeds FOLDER     writes the seeds of every target to FOLDER/<target>/<name>
//
// An input at which a target fails is named before the program ends. An archive that is missing, damaged or empty is a
// failure too: otherwise a corpus that was lost would pass for one in which everything is well.

#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

#include <ferry/base/log.hpp>

#include "tar.hpp"
#include "targets.hpp"

namespace {

namespace fs = std::filesystem;

std::string current;  // what is being run

extern "C" void name_current(int signal) {
  const char before[] = "replay: the input that fails: ";
  (void)!::write(STDERR_FILENO, before, sizeof(before) - 1);
  (void)!::write(STDERR_FILENO, current.data(), current.size());
  (void)!::write(STDERR_FILENO, "\n", 1);
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

std::vector<std::byte> content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}

void write_seeds(const fs::path& folder) {
  for (const fuzz::target* each : fuzz::all_targets()) {
    const fs::path place = folder / each->name;
    fs::create_directories(place);
    each->seeds([&](std::string_view name, fuzz::bytes content) {
      std::ofstream file(place / name, std::ios::binary);
      file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
      if (!file.flush()) throw std::runtime_error("cannot write " + (place / name).string());
    });
  }
}

int run(const fuzz::target& target, std::span<const char* const> paths) {
  int seeds = 0;
  int inputs = 0;
  target.seeds([&](std::string_view name, fuzz::bytes content) {
    current = "seed " + std::string(name);
    target.run(content);
    ++seeds;
  });
  for (const char* path : paths) {
    const fs::path file =
        fs::is_directory(path) ? fs::path(path) / (std::string(target.name) + ".tar") : fs::path(path);
    current = file.string();
    const std::vector<std::byte> content = content_of(file);
    if (file.extension() != ".tar") {
      target.run(content);
      ++inputs;
      continue;
    }
    const std::vector<fuzz::tar_member> members = fuzz::read_tar(content);
    if (members.empty()) throw std::runtime_error("there is no input in this archive");
    for (const auto& [name, input] : members) {
      current = file.string() + ": " + name;
      // Without its neighbours in the archive, so that a sanitizer sees what is read beyond its end.
      const std::vector<std::byte> alone(input.begin(), input.end());
      target.run(alone);
      ++inputs;
    }
  }
  std::printf("%s: %d seeds, %d inputs\n", std::string(target.name).c_str(), seeds, inputs);
  return seeds == 0 ? 1 : 0;
}

}  // namespace

int main(int count, char** arguments) {
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, name_current);
  ferry::set_log_level(ferry::log_level::off);
  const std::span<const char* const> all(arguments, static_cast<std::size_t>(count));
  try {
    if (count == 3 && std::string_view(all[1]) == "--seeds") {
      write_seeds(all[2]);
      return 0;
    }
    for (const fuzz::target* each : fuzz::all_targets()) {
      if (count >= 2 && each->name == all[1]) return run(*each, all.subspan(2));
    }
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "replay: at %s: %s\n", current.c_str(), problem.what());
    return 1;
  }
  std::fprintf(stderr, "usage: replay TARGET [FILE|ARCHIVE.tar|FOLDER]...\n       replay --seeds FOLDER\ntargets:");
  for (const fuzz::target* each : fuzz::all_targets()) std::fprintf(stderr, " %s", std::string(each->name).c_str());
  std::fprintf(stderr, "\n");
  return 2;
}

#include "observation.hpp"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>

#include <ferry/base/error.hpp>

namespace ferry_top {
namespace {

constexpr std::size_t most_threads = 32;

void ask(ferry::group_observer& group, observed& whom, bool with_events) {
  if (!whom.who.lost.empty()) {
    whom.why = "lost: " + whom.who.lost;
    return;
  }
  try {
    if (with_events) whom.clock = group.clock_of(whom.who);
    whom.snapshot = group.snapshot(whom.who, with_events);
  } catch (const ferry::error& e) {
    whom.why = std::string(ferry::errc_name(e.kind())) + ": " + std::string(e.message());
  } catch (const std::exception& e) {  // no memory
    whom.why = e.what();
  }
}

}  // namespace

observation read_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code none;
    if (!std::filesystem::is_directory(path, none)) {
      files.push_back(path);
      continue;
    }
    const std::size_t before = files.size();
    for (const auto& each : std::filesystem::directory_iterator(path)) {
      if (each.path().extension() == ".flight") files.push_back(each.path().string());
    }
    std::sort(files.begin() + static_cast<std::ptrdiff_t>(before), files.end());
  }
  if (files.empty()) throw std::runtime_error("there is no flight file in " + paths.front());
  observation result;
  result.time = std::chrono::system_clock::now();
  result.kind = "post mortem";
  for (const std::string& file : files) {
    observed& each = result.workers.emplace_back();
    try {
      each.snapshot = ferry::read_flight_file(file);
      each.who.who = each.snapshot->worker;
      each.who.incarnation = each.snapshot->incarnation;
    } catch (const ferry::error& e) {
      each.why = e.message();
    }
  }
  return result;
}

observation look(ferry::group_observer& group, bool with_events) {
  observation result;
  result.time = std::chrono::system_clock::now();
  for (ferry::observed_worker& each : group.workers()) result.workers.push_back({std::move(each), {}, {}, {}});
  result.kind = group.kind();
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i != std::min(most_threads, result.workers.size()); ++i) {
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < result.workers.size(); at = next++)
        ask(group, result.workers[at], with_events);
    });
  }
  threads.clear();  // joins them
  return result;
}

}  // namespace ferry_top

#include "peer_log.hpp"

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace ferry::inline v0::detail {
namespace {

constexpr int most_lines = 20;
constexpr std::chrono::seconds window_length{5};
constexpr std::size_t most_peers = 256;
constexpr std::string_view further_peers = "further peers";

struct line_window {
  std::chrono::steady_clock::time_point began;
  int lines = 0;
  std::size_t left_out = 0;
};

struct line_windows {
  std::mutex mutex;
  std::map<std::string, line_window, std::less<>> of_peer;
  std::chrono::steady_clock::time_point next_sweep;
};

line_windows& windows() {
  static auto* instance = new line_windows;  // outlives static destruction on purpose
  return *instance;
}

using left_out_lines = std::vector<std::pair<std::string, std::size_t>>;

// With the mutex held. Removes windows that are over, or all.
left_out_lines take_ended(line_windows& all, std::chrono::steady_clock::time_point now, bool every) {
  left_out_lines result;
  for (auto each = all.of_peer.begin(); each != all.of_peer.end();) {
    if (!every && now - each->second.began < window_length) {
      ++each;
      continue;
    }
    if (each->second.left_out != 0) result.emplace_back(each->first, each->second.left_out);
    each = all.of_peer.erase(each);
  }
  all.next_sweep = now + window_length / 5;
  return result;
}

void report(const left_out_lines& lines) {
  for (const auto& [peer, count] : lines) {
    std::string text = std::to_string(count);
    text += " more lines about ";
    text += peer;
    text += " were left out";
    log(log_level::warning, text);
  }
}

}  // namespace

bool admit_line_about(std::string_view peer) noexcept {
  try {
    left_out_lines ended;
    bool admitted = false;
    {
      auto& all = windows();
      const std::lock_guard lock(all.mutex);
      const auto now = std::chrono::steady_clock::now();
      if (now >= all.next_sweep) ended = take_ended(all, now, false);
      auto found = all.of_peer.find(peer);
      if (found == all.of_peer.end()) {
        const std::string_view name = all.of_peer.size() < most_peers ? peer : further_peers;
        found = all.of_peer.try_emplace(std::string(name), line_window{now}).first;
      }
      line_window& window = found->second;
      admitted = window.lines < most_lines;
      if (admitted) {
        ++window.lines;
      } else {
        ++window.left_out;
      }
    }
    report(ended);
    return admitted;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

void report_left_out_lines() noexcept {
  try {
    left_out_lines ended;
    {
      auto& all = windows();
      const std::lock_guard lock(all.mutex);
      ended = take_ended(all, std::chrono::steady_clock::now(), true);
    }
    report(ended);
  } catch (const std::bad_alloc&) {
    log(log_level::warning, "out of memory: lines about peers were left out");
  }
}

void forget_left_out_lines() noexcept {
  auto& all = windows();
  const std::lock_guard lock(all.mutex);
  all.of_peer.clear();
}

}  // namespace ferry::inline v0::detail

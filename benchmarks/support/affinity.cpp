#include "affinity.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

#include <sched.h>

namespace ferry_bench {
namespace {

std::string core_of(int processor) {
  const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(processor) + "/topology/";
  std::ifstream core(folder + "core_id");
  std::ifstream package(folder + "physical_package_id");
  std::string number;
  std::string socket;
  if (!(core >> number) || !(package >> socket)) return std::to_string(processor);
  return socket + ":" + number;
}

std::vector<int> allowed_at_start() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return {0};
  std::vector<int> all;
  for (int i = 0; i != CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) all.push_back(i);
  }
  return all;
}

const std::vector<int>& all_processors() {
  static const std::vector<int> all = allowed_at_start();
  return all;
}

cpu_set_t set_of(const std::vector<int>& wanted) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : wanted) CPU_SET(processor, &set);
  return set;
}

void apply(pid_t thread, const cpu_set_t& set) {
  if (::sched_setaffinity(thread, sizeof set, &set) != 0 && errno != ESRCH) {
    throw std::system_error(errno, std::generic_category(), "pinning a thread (sched_setaffinity)");
  }
}

}  // namespace

std::string_view name_of(pin_mode mode) {
  switch (mode) {
    case pin_mode::same_core: return "same-core";
    case pin_mode::two_cores: return "two-cores";
    case pin_mode::unpinned: break;
  }
  return "unpinned";
}

const std::vector<int>& processors() {
  static const std::vector<int> chosen = [] {
    const std::vector<int>& all = all_processors();
    std::vector<int> result{all.front()};
    const auto other =
        std::find_if(all.begin() + 1, all.end(), [&](int p) { return core_of(p) != core_of(all.front()); });
    if (other != all.end()) {
      result.push_back(*other);
    } else if (all.size() > 1) {
      result.push_back(all[1]);
    }
    return result;
  }();
  return chosen;
}

bool possible(pin_mode mode) { return mode != pin_mode::two_cores || processors().size() > 1; }

void pin_process(pid_t process, pin_mode mode, side which) {
  const std::vector<int>& chosen = processors();
  const cpu_set_t set = mode == pin_mode::unpinned    ? set_of(all_processors())
                        : mode == pin_mode::same_core ? set_of({chosen.front()})
                                                      : set_of({chosen[which == side::caller ? 0 : 1]});
  const std::string folder = "/proc/" + (process == 0 ? std::string("self") : std::to_string(process)) + "/task";
  // A thread that starts meanwhile may inherit the old set: repeat until there is no new one.
  std::set<pid_t> pinned;
  for (bool found = true; found;) {
    found = false;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string text = entry.path().filename();
      pid_t thread = 0;
      std::from_chars(text.data(), text.data() + text.size(), thread);
      if (!pinned.insert(thread).second) continue;
      apply(thread, set);
      found = true;
    }
  }
}

void pin_thread(int index) {
  apply(0, index < 0 ? set_of(all_processors()) : set_of({processors()[static_cast<std::size_t>(index)]}));
}

}  // namespace ferry_bench

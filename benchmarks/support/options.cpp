#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

namespace ferry_bench {
namespace {

constexpr const char* usage = R"(
  --quick          fewer and shorter repeats: a look, not a measurement
  --alone          without the baselines, for a profiler
  --json           one object a line: name, value, unit, baseline, baseline_value, ratio, n
  --repeats N      measurements per figure, each next to one of its baseline (5)
  --window MS      length of one measurement
  --filter TEXT    only cases with TEXT in their name; several must all match
  --pin MODES      comma-separated: same-core, two-cores, unpinned
  --limit SECONDS  give up after so long
)";

[[noreturn]] void refuse(const std::string& reason) {
  std::fprintf(stderr, "%s\noptions:%s", reason.c_str(), usage);
  std::exit(2);  // NOLINT(concurrency-mt-unsafe): nothing else runs yet
}

int number(std::string_view option, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    refuse(std::string(option) + " needs a number from 1, not '" + std::string(text) + "'");
  }
  return value;
}

std::vector<pin_mode> read_pins(std::string_view text) {
  std::vector<pin_mode> pins;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    const auto known = {pin_mode::same_core, pin_mode::two_cores, pin_mode::unpinned};
    const auto* const found = std::find_if(known.begin(), known.end(), [&](pin_mode m) { return name_of(m) == word; });
    if (found == known.end()) refuse("--pin: '" + std::string(word) + "' is none of same-core, two-cores, unpinned");
    if (!possible(*found)) refuse("--pin: two-cores needs two processors, and this process may use only one");
    pins.push_back(*found);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return pins;
}

void on_time_limit(int) {
  constexpr std::string_view text = "the benchmark took longer than its time limit (--limit)\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  ::_exit(1);
}

}  // namespace

bool options::wants(std::string_view name) const {
  return std::all_of(filters.begin(), filters.end(),
                     [&](const std::string& text) { return name.find(text) != std::string_view::npos; });
}

std::chrono::nanoseconds options::window_or(std::chrono::nanoseconds usual) const {
  if (window.count() != 0) return window;
  return quick ? usual / 5 : usual;
}

std::vector<pin_mode> options::pins_or(const std::vector<pin_mode>& usual) const {
  std::vector<pin_mode> result = pins.empty() ? usual : pins;
  std::erase_if(result, [](pin_mode mode) { return !possible(mode); });
  return result;
}

options read_options(int argc, char** argv, std::string_view what) {
  options result;
  bool repeats_given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    const auto value = [&]() -> std::string_view {
      if (++i == argc) refuse(std::string(option) + " needs a value");
      return argv[i];
    };
    if (option == "--quick") {
      result.quick = true;
    } else if (option == "--alone") {
      result.alone = true;
    } else if (option == "--json") {
      result.json = true;
    } else if (option == "--repeats") {
      result.repeats = number(option, value());
      repeats_given = true;
    } else if (option == "--window") {
      result.window = std::chrono::milliseconds(number(option, value()));
    } else if (option == "--filter") {
      result.filters.emplace_back(value());
    } else if (option == "--pin") {
      result.pins = read_pins(value());
    } else if (option == "--limit") {
      result.limit = std::chrono::seconds(number(option, value()));
    } else if (option == "--help" || option == "-h") {
      std::printf("%.*s\n%s", static_cast<int>(what.size()), what.data(), usage);
      std::exit(0);  // NOLINT(concurrency-mt-unsafe)
    } else {
      refuse("unknown option '" + std::string(option) + "'");
    }
  }
  if (result.quick && !repeats_given) result.repeats = 2;
  return result;
}

void end_after(std::chrono::seconds limit) {
  struct sigaction action {};
  action.sa_handler = on_time_limit;
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(static_cast<unsigned>(limit.count()));
}

}  // namespace ferry_bench

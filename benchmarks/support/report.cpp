#include "report.hpp"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <thread>

#include <fmt/format.h>
#include <sys/utsname.h>

#include "ring.hpp"

namespace ferry_bench {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown processor";
}

double load_average() {
  std::ifstream file("/proc/loadavg");
  double value = 0;
  file >> value;
  return value;
}

std::string number(double value) {
  const double size = std::abs(value);
  if (size >= 10000) return fmt::format("{:.0f}", value);
  if (size >= 100) return fmt::format("{:.1f}", value);
  return size >= 1 || size == 0 ? fmt::format("{:.2f}", value) : fmt::format("{:.3f}", value);
}

std::string range_of(const repeated& value) {
  return fmt::format("[{}..{}]", number(value.lowest()), number(value.highest()));
}

double ratio_of(const figure& what) { return what.baseline_value != 0 ? what.value / what.baseline_value : 0; }

}  // namespace

report::report(std::string benchmark, const options& chosen)
    : benchmark_(std::move(benchmark)), json_(chosen.json), quick_(chosen.quick) {
  utsname system{};
  ::uname(&system);
  say(fmt::format("{}: {} processors ({}), {} {}, load {:.1f}", benchmark_, std::thread::hardware_concurrency(),
                  processor_name(), system.sysname, system.release, load_average()));
  if (load_average() > 0.5) say("The machine is not idle: expect the ratios to suffer.");
  if (quick_) say("--quick: an estimate, not a measurement.");
  alone_ = chosen.alone;
  measure_ring("before");
}

report::~report() {
  measure_ring("after");
  if (met_ + missed_ != 0) say(fmt::format("targets: {} met, {} missed", met_, missed_));
}

void report::measure_ring(const char* when) {
  if (alone_) return;
  const auto round_trip = ring_round_trip(std::chrono::milliseconds(quick_ ? 20 : 100));
  if (!round_trip) return say("raw shared-memory ring: not measured, it needs two processors");
  if (json_) {
    print_json({.name = fmt::format("ring/{}", when), .value = *round_trip, .unit = "us", .n = 1});
  } else {
    say(fmt::format("{}raw spinning shared-memory ring, {}: {:.3f} us a round trip", header_printed_ ? "\n" : "", when,
                    *round_trip));
  }
}

void report::say(std::string_view line) const {
  if (json_) return;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void report::section(std::string_view title) {
  if (json_) return;
  say(fmt::format("\n{}", title));
  section_ = title;
  header_printed_ = false;
}

void report::add(const figure& what, std::optional<target> wanted) {
  json_ ? print_json(what) : print_row(what, wanted);
}

void report::add(const std::string& name, const repeated& value, const std::string& unit, const std::string& baseline,
                 const repeated* baseline_value, std::size_t n, std::optional<target> wanted) {
  const compared middle = baseline_value ? median_pair(value, *baseline_value) : compared{value.median(), 0};
  add({.name = name,
       .value = middle.value,
       .unit = unit,
       .baseline = baseline_value ? baseline : "",
       .baseline_value = middle.baseline,
       .n = n,
       .note = range_of(value)},
      wanted);
}

void report::add(const std::string& name, const timing& value, const std::string& baseline,
                 const timing* baseline_value, std::optional<target> wanted) {
  add(name + "/p50", value.p50, "us", baseline, baseline_value ? &baseline_value->p50 : nullptr, value.samples, wanted);
  add(name + "/p99", value.p99, "us", baseline, baseline_value ? &baseline_value->p99 : nullptr, value.samples);
}

void report::print_row(const figure& what, const std::optional<target>& wanted) {
  if (!header_printed_) {
    fmt::print("{:<38} {:>10} {:<6} {:<20} {:>6}  {:<18} {:>9}  {:<27} {:>6}\n", "", "value", "", "[over repeats]",
               "ratio", "target", "baseline", "", "n");
    header_printed_ = true;
  }
  std::string verdict;
  if (wanted && (!wanted->of_ratio || !what.baseline.empty())) {
    const double reached = wanted->of_ratio ? ratio_of(what) : what.value;
    const bool met = wanted->at_least ? reached >= wanted->bound : reached <= wanted->bound;
    ++(met ? met_ : missed_);
    verdict = fmt::format("{} {:g} {}", wanted->at_least ? ">=" : "<=", wanted->bound, met ? "met" : "MISSED");
  }
  const bool compared = !what.baseline.empty();
  std::string_view name = what.name;
  if (name.starts_with(section_)) name.remove_prefix(section_.size());
  fmt::print("{:<38} {:>10} {:<6} {:<20} {:>6}  {:<18} {:>9}  {:<27} {:>6}\n", name, number(what.value), what.unit,
             what.note, compared ? fmt::format("{:.2f}", ratio_of(what)) : "", verdict,
             compared ? number(what.baseline_value) : "", what.baseline, what.n);
  std::fflush(stdout);
}

void report::print_json(const figure& what) const {
  const bool compared = !what.baseline.empty();
  fmt::print(R"({{"name":"{}/{}","value":{:.6g},"unit":"{}","baseline":{},"baseline_value":{},"ratio":{},"n":{}}})"
             "\n",
             benchmark_, what.name, what.value, what.unit, compared ? fmt::format("\"{}\"", what.baseline) : "null",
             compared ? fmt::format("{:.6g}", what.baseline_value) : "null",
             compared && what.baseline_value != 0 ? fmt::format("{:.4g}", ratio_of(what)) : "null", what.n);
  std::fflush(stdout);
}

}  // namespace ferry_bench

// The cost of ferry apart from calls: processor time of two idle workers that are connected to each other, and what the
// flight recorder, an interceptor that does nothing, a session of the profiler, and metrics add to a small call.

#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/profiler.hpp>

#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/process.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

void measure(report& out, const options& chosen, const std::string& transport) {
  const std::string prefix = "idle/" + transport + "/";
  if (!chosen.wants(prefix)) return;
  const auto length = chosen.window.count() != 0 ? std::chrono::nanoseconds(chosen.window)
                                                 : std::chrono::nanoseconds(chosen.quick ? 2s : 10s);
  worker_pair pair({.transport = transport}, pin_mode::unpinned);
  // Busy first: the adaptive state from that phase, spinning for example, must not persist.
  for (int i = 0; i != 5000; ++i) (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);
  const double here = processor_seconds(0);
  const double there = processor_seconds(pair.callee_process());
  const auto started = clock::now();
  std::this_thread::sleep_for(length);
  const double seconds = std::chrono::duration<double>(clock::now() - started).count();
  const double caller = 100 * (processor_seconds(0) - here) / seconds;
  const double other = 100 * (processor_seconds(pair.callee_process()) - there) / seconds;
  (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);  // still connected
  out.section(prefix);
  const target wanted{0.5, false, false};
  out.add({.name = prefix + "caller", .value = caller, .unit = "% core", .n = 1}, wanted);
  out.add({.name = prefix + "callee", .value = other, .unit = "% core", .n = 1}, wanted);
}

// What something adds to a small call: pairs of workers that differ only in it take turns, in short windows, so that
// other load affects both.
struct addition {
  std::string name;
  pair_options with;
  pair_options without;
  const char* unit;  // "%" of the call, or "ns"
  double most;
  void (*prepare)(worker_pair& with) = nullptr;  // null: nothing
};

// A call with something and without it, in turn: first one, then the other.
struct in_turns {
  std::vector<double> on;  // in microseconds
  std::vector<double> off;
  std::vector<double> added;  // of each turn, in ns or in % of the call

  template <class Median>
  void add(int turns, bool absolute, const Median& median_of) {
    for (int turn = 0; turn != turns; ++turn) {
      const bool with_first = turn % 2 == 0;
      const double first = median_of(with_first);
      const double second = median_of(!with_first);
      on.push_back(with_first ? first : second);
      off.push_back(with_first ? second : first);
      added.push_back(absolute ? 1000 * (on.back() - off.back()) : 100 * (on.back() / off.back() - 1));
    }
  }
  // quantile() reorders.
  void report_to(report& out, const std::string& prefix, const char* unit, double most) {
    out.section(prefix);
    out.add({.name = prefix + "add", .value = quantile(on, 0.5), .unit = "us", .n = on.size()});
    out.add({.name = prefix + "add-without", .value = quantile(off, 0.5), .unit = "us", .n = off.size()});
    out.add({.name = prefix + "added", .value = quantile(added, 0.5), .unit = unit, .n = added.size()},
            target{most, false, false});
    // Where the median lies with a probability of 95 %: between these of the sorted differences, whatever their distribution.
    const double half = 0.98 / std::sqrt(static_cast<double>(added.size()));
    out.add({.name = prefix + "added-from", .value = quantile(added, 0.5 - half), .unit = unit, .n = added.size()});
    out.add({.name = prefix + "added-to", .value = quantile(added, 0.5 + half), .unit = unit, .n = added.size()});
  }
};

void measure_addition(report& out, const options& chosen, const addition& what) {
  const std::string prefix = what.name + "/" + what.with.transport + "/";
  if (!chosen.wants(prefix)) return;
  const auto window = chosen.window_or(20ms);
  const int rounds = chosen.quick ? 2 : 10;
  const int turns = chosen.quick ? 5 : 10;
  const bool absolute = std::string_view(what.unit) == "ns";
  const pin_mode pin = processors().size() > 1 ? pin_mode::two_cores : pin_mode::same_core;
  const auto median_of = [&](worker_pair& pair) {
    pair.pin();
    const auto call = [&] { (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2); };
    for (int warm = 0; warm != 200; ++warm) call();
    auto samples = time_each(window, 20, call);
    return quantile(samples, 0.5);
  };
  in_turns found;
  // Two pairs of workers differ by a hundredth by where their memory lies: several of them, in both orders.
  for (int round = 0; round != rounds; ++round) {
    std::optional<worker_pair> with;
    std::optional<worker_pair> without;
    if (round % 2 != 0) without.emplace(what.without, pin);
    with.emplace(what.with, pin);
    if (!without) without.emplace(what.without, pin);
    if (what.prepare) what.prepare(*with);
    found.add(turns, absolute, [&](bool with_it) { return median_of(with_it ? *with : *without); });
  }
  found.report_to(out, prefix, what.unit, what.most);
}

// A session that is over, of many calls.
void record_and_stop(worker_pair& pair) {
  pair.pin();
  ferry::profiler::session over(pair.caller());
  for (int i = 0; i != 1000; ++i) (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2);
}

// The same call of one pair of workers, with a session at the caller and without one, in turn. With a session the callee records,
// too, and sends its events back.
void measure_session(report& out, const options& chosen, const std::string& transport) {
  const std::string prefix = "session/" + transport + "/";
  if (!chosen.wants(prefix)) return;
  const auto window = chosen.window_or(20ms);
  const int turns = chosen.quick ? 30 : 100;
  worker_pair pair({.transport = transport}, processors().size() > 1 ? pin_mode::two_cores : pin_mode::same_core);
  pair.pin();
  const auto call = [&] { (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2); };
  const auto median_of = [&](bool recorded) {
    std::optional<ferry::profiler::session> session;
    if (recorded) session.emplace(pair.caller());
    for (int warm = 0; warm != 200; ++warm) call();
    auto samples = time_each(window, 20, call);
    return quantile(samples, 0.5);
  };
  in_turns found;
  found.add(turns, true, median_of);
  found.report_to(out, prefix, "ns", 400);
}

std::optional<ferry::profiler::metrics>& metrics_here() {
  static std::optional<ferry::profiler::metrics> instance;
  return instance;
}
void count_here(bool on) {
  metrics_here().reset();
  if (on) metrics_here().emplace();
}

// The same call of one pair of workers, with metrics at one end and without them, in turn.
void measure_metrics(report& out, const options& chosen, const std::string& transport, bool at_callee) {
  const std::string prefix = std::string("metrics-") + (at_callee ? "callee" : "caller") + "/" + transport + "/";
  if (!chosen.wants(prefix)) return;
  // Many short turns: what is looked for is a hundredth of what the machine drifts by in a tenth of a second.
  const auto window = chosen.window_or(3ms);
  const int turns = chosen.quick ? 100 : 800;
  worker_pair pair({.transport = transport}, processors().size() > 1 ? pin_mode::two_cores : pin_mode::same_core);
  pair.pin();
  const auto call = [&] { (void)pair.caller().rpc_sync<remote::add>(callee, 1, 2); };
  const auto median_of = [&](bool counted) {
    std::optional<ferry::profiler::metrics> here;
    if (at_callee) {
      pair.caller().rpc_sync<count_here>(callee, counted);
    } else if (counted) {
      here.emplace(pair.caller());
    }
    for (int warm = 0; warm != 200; ++warm) call();
    auto samples = time_each(window, 20, call);
    return quantile(samples, 0.5);
  };
  in_turns found;
  found.add(turns, true, median_of);
  if (at_callee) pair.caller().rpc_sync<count_here>(callee, false);
  found.report_to(out, prefix, "ns", 25);
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, worker_roles());
  const options chosen = read_options(
      argc, argv,
      "overhead: processor time of idle workers; the cost of the flight recorder, of an idle interceptor, of the "
      "profiler and of metrics");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(120));
  try {
    report out("overhead", chosen);
    for (const std::string transport : {"tcp", "unix", "shm"}) measure(out, chosen, transport);
    for (const std::string transport : {"tcp", "unix", "inproc"}) {
      measure_addition(out, chosen,
                       {"recorder", {.transport = transport}, {.transport = transport, .flight_events = 0}, "%", 2});
      // At the caller and at the callee together. What it computes is 200 instructions; the figure varies by 100 ns.
      measure_addition(
          out, chosen,
          {"interceptor", {.transport = transport, .idle_interceptors = 1}, {.transport = transport}, "ns", 30});
      // The profiler is off: what it has left of a session that is over.
      measure_addition(out, chosen,
                       {"profiler-off", {.transport = transport}, {.transport = transport}, "%", 1, &record_and_stop});
      measure_session(out, chosen, transport);
      if (transport == "inproc") continue;  // both ends would be one
      for (const bool at_callee : {false, true}) measure_metrics(out, chosen, transport, at_callee);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "overhead: %s\n", e.what());
    return 1;
  }
}

// The cost of references to objects of another worker, against plain calls of the same body with the same argument
// between the same two processes. Both take turns, in short windows.
//
//   call, call-async    a function of the object, through a reference confirmed by the owner
//   create-fetch        remote<f>(...).to_here(), and the end of the reference
//   create-call-drop    an object is created, called once, and released
//   burst               the same of 64 objects at once, as objects per second, against 64 calls at once
//   drop                the end of the last handle, for the releasing thread
//   share-with-owner    a reference as an argument of a call to its owner
//   share-with-third    the same to a third worker, against a plain call of that one: it has to query the owner first
//   return              a call that makes an object at the callee and returns a reference to it

#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ferry/ferry.hpp>

#include "support/allocations.hpp"
#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;
using remote::counter;

constexpr std::size_t in_burst = 64;

struct parties {
  const ferry::worker& caller;
  ferry::rref<counter> there;  // a counter of the callee
};
using act = std::function<void(const parties&)>;

struct call_case {
  const char* name;
  act once;
  const char* plain_name;
  act plain;
  std::optional<double> bound;  // of the ratio
};

std::vector<call_case> calls(const std::string& transport) {
  const act plain = [](const parties& p) { (void)p.caller.rpc_sync<remote::bump>(callee, 1); };
  return {
      {"call", [](const parties& p) { (void)p.there.rpc_sync<&counter::bump>(1); }, "plain call", plain, 1.1},
      {"call-async", [](const parties& p) { (void)p.there.rpc_async<&counter::bump>(1).get(); }, "plain rpc_async",
       [](const parties& p) { (void)p.caller.rpc_async<remote::bump>(callee, 1).get(); }, 1.1},
      {"create-fetch", [](const parties& p) { (void)p.caller.remote<remote::itself>(callee, 1).to_here(); },
       "plain call", [](const parties& p) { (void)p.caller.rpc_sync<remote::itself>(callee, 1); },
       transport == "tcp" ? 2.0 : 1.6},
      {"create-call-drop",
       [](const parties& p) { (void)p.caller.remote<ferry::make<counter>>(callee, 1).rpc_sync<&counter::bump>(1); },
       "plain call", plain, 2.5},
      {"share-with-owner", [](const parties& p) { (void)p.caller.rpc_sync<remote::look_at>(callee, p.there); },
       "plain call", plain, std::nullopt},
      {"share-with-third", [](const parties& p) { (void)p.caller.rpc_sync<remote::look_at>(third, p.there); },
       "plain call of it", [](const parties& p) { (void)p.caller.rpc_sync<remote::bump>(third, 1); }, 2.5},
      {"return", [](const parties& p) { (void)p.caller.rpc_sync<remote::new_counter>(callee, 1); }, "plain call", plain,
       std::nullopt},
  };
}

// As time_each, for the release of references only.
std::vector<double> time_drops(const parties& p, std::chrono::nanoseconds window) {
  std::vector<double> result;
  const auto until = clock::now() + window;
  do {
    std::array<ferry::rref<counter>, in_burst> refs;
    for (auto& each : refs) each = p.caller.remote<ferry::make<counter>>(callee, 1);
    for (auto& each : refs) each.created().get();
    auto last = clock::now();
    for (auto& each : refs) {
      each = {};
      const auto now = clock::now();
      result.push_back(std::chrono::duration<double, std::micro>(now - last).count());
      last = now;
    }
  } while (clock::now() < until);
  return result;
}

double per_second(std::size_t count, clock::time_point started) {
  return static_cast<double>(count) / std::chrono::duration<double>(clock::now() - started).count();
}

double bursts_of_objects(const parties& p, std::chrono::nanoseconds window) {
  const auto started = clock::now();
  std::size_t count = 0;
  do {
    std::array<ferry::future<int>, in_burst> results;
    for (auto& each : results) {
      each = p.caller.remote<ferry::make<counter>>(callee, 1).rpc_async<&counter::bump>(1);
    }
    for (auto& each : results) (void)std::move(each).get();
    count += in_burst;
  } while (clock::now() - started < window);
  return per_second(count, started);
}

double bursts_of_calls(const parties& p, std::chrono::nanoseconds window) {
  const auto started = clock::now();
  std::size_t count = 0;
  do {
    std::array<ferry::future<int>, in_burst> results;
    for (auto& each : results) each = p.caller.rpc_async<remote::bump>(callee, 1);
    for (auto& each : results) (void)std::move(each).get();
    count += in_burst;
  } while (clock::now() - started < window);
  return per_second(count, started);
}

// Allocations of each side per call.
void report_allocations(report& out, const std::string& name, const act& once, const parties& p) {
  if (!can_count_allocations()) return;
  constexpr int count = 1000;
  const auto counted = [&](int calls) -> std::pair<double, double> {
    const auto there = p.caller.rpc_sync<remote::counted_allocations>(callee);
    const auto here = allocations();
    for (int i = 0; i != calls; ++i) once(p);
    const auto of_caller = allocations() - here;
    return {static_cast<double>(of_caller),
            static_cast<double>(p.caller.rpc_sync<remote::counted_allocations>(callee) - there)};
  };
  for (int i = 0; i != 200; ++i) once(p);
  p.caller.rpc_sync<remote::switch_counting>(callee, true);
  count_allocations(true);
  const auto nothing = counted(0);
  const auto all = counted(count);
  p.caller.rpc_sync<remote::switch_counting>(callee, false);
  count_allocations(false);
  out.add({.name = name + "/allocations/caller",
           .value = (all.first - nothing.first) / count,
           .unit = "/call",
           .n = count});
  out.add({.name = name + "/allocations/callee",
           .value = (all.second - nothing.second) / count,
           .unit = "/call",
           .n = count});
}

void measure(report& out, const options& chosen, const std::string& transport, pin_mode pin) {
  const std::string prefix = transport + "/" + std::string(name_of(pin)) + "/";
  std::vector<call_case> wanted;
  for (call_case& one : calls(transport)) {
    if (chosen.wants(prefix + one.name)) wanted.push_back(std::move(one));
  }
  const bool drops = chosen.wants(prefix + "drop");
  const bool bursts = chosen.wants(prefix + "burst");
  if (wanted.empty() && !drops && !bursts) return;
  const auto window = chosen.window_or(10ms);
  const int turns = 4 * chosen.repeats;

  worker_pair pair({.transport = transport, .third = true}, pin);
  parties p{pair.caller(), pair.caller().remote<ferry::make<counter>>(callee, 0)};
  p.there.created().get();
  for (const call_case& one : wanted) {
    time_each(window, 200, [&] { one.once(p); });
    time_each(window, 200, [&] { one.plain(p); });
  }
  pair.pin();

  out.section(prefix);
  for (const call_case& one : wanted) {
    timing value;
    timing baseline;
    const auto take = [&](const act& what, timing& into) {
      for (int warm = 0; warm != 20; ++warm) what(p);
      auto samples = time_each(window, 20, [&] { what(p); });
      into.add(samples);
    };
    for (int turn = 0; turn != turns; ++turn) {
      // Each is first equally often.
      if (turn % 2 == 0) take(one.once, value);
      if (!chosen.alone) take(one.plain, baseline);
      if (turn % 2 != 0) take(one.once, value);
    }
    const auto bound = one.bound ? std::optional<target>(target{*one.bound, false, true}) : std::nullopt;
    out.add(prefix + one.name, value, one.plain_name, chosen.alone ? nullptr : &baseline, bound);
  }
  if (drops) {
    timing value;
    timing baseline;
    for (int turn = 0; turn != turns; ++turn) {
      auto samples = time_drops(p, window);
      value.add(samples);
      if (chosen.alone) continue;
      auto plain = time_each(window, 20, [&] { (void)p.caller.rpc_sync<remote::bump>(callee, 1); });
      baseline.add(plain);
    }
    out.add(prefix + "drop", value, "plain call", chosen.alone ? nullptr : &baseline);
  }
  if (bursts) {
    repeated value;
    repeated baseline;
    for (int turn = 0; turn != turns; ++turn) {
      value.add(bursts_of_objects(p, window));
      if (!chosen.alone) baseline.add(bursts_of_calls(p, window));
    }
    out.add(prefix + "burst", value, "/s", "64 plain rpc_async", chosen.alone ? nullptr : &baseline,
            static_cast<std::size_t>(turns));
  }
  for (const call_case& one : wanted) report_allocations(out, prefix + one.name, one.once, p);
}

int run(const options& chosen) {
  report out("references", chosen);
  for (const std::string transport : {"shm", "unix", "tcp"}) {
    for (const pin_mode pin : chosen.pins_or({pin_mode::same_core, pin_mode::two_cores})) {
      measure(out, chosen, transport, pin);
    }
  }
  return 0;
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  run_role(argc, argv, worker_roles());
  const options chosen = read_options(argc, argv, "references: objects of another worker, against plain calls");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(180));
  try {
    return run(chosen);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "references: %s\n", e.what());
    return 1;
  }
}

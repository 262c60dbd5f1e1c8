// How long a small call takes, against round trips of as many bytes over a bare socket.
//
//   sleeping      both sides sleep whenever they wait (max_spin = 0); baseline: blocking recv()
//   spinning      default options; baseline: non-blocking recv() in a loop (on one core: blocking, spinning is senseless)
//   busy-poll     both sides spin whenever they wait (busy_poll = 1); two cores, between processes
//   busy-handler  as spinning, while a handler of the callee blocks for 100 ms at a time, called by a third process
//   busy-caller   the same, called by another thread of the caller's process

#include <atomic>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <ferry/ferry.hpp>
#include <ferry/tensor/factories.hpp>

#include "support/allocations.hpp"
#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/raw_socket.hpp"
#include "support/raw_threads.hpp"
#include "support/report.hpp"
#include "support/ring.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

// The messages of add() and of the echo of 64 bytes have this size: frame header and arguments.
constexpr std::size_t small_message = ferry::frame_header::encoded_size + 8;
constexpr std::size_t echo_message = ferry::frame_header::encoded_size + 8 + 64;

struct mode {
  const char* name;
  bool sleeping;
  bool bystander;
  bool own_blocker;
  bool busy_poll = false;
};
constexpr mode modes[] = {{"sleeping", true, false, false},
                          {"spinning", false, false, false},
                          {"busy-poll", false, false, false, true},
                          {"busy-handler", false, true, false},
                          {"busy-caller", false, false, true}};

struct call_case {
  const char* name;
  std::size_t message;
  bool targeted;       // by the targets of small calls
  bool in_every_mode;  // also while a handler is busy
  std::function<void(const ferry::worker&)> once;
};

std::vector<call_case> calls() {
  const std::string text(64, 'x');
  const ferry::tensor one = ferry::ones({1});
  return {
      {"add", small_message, true, true, [](const auto& w) { (void)w.template rpc_sync<remote::add>(callee, 1, 2); }},
      {"echo64", echo_message, true, true,
       [text](const auto& w) { (void)w.template rpc_sync<remote::echo>(callee, text); }},
      {"async-get", small_message, false, false,
       [](const auto& w) { (void)w.template rpc_async<remote::add>(callee, 1, 2).get(); }},
      {"tensor-in", echo_message, false, false,
       [one](const auto& w) { (void)w.template rpc_sync<remote::numel>(callee, one); }},
      {"2-tensors-in-1-out", echo_message, false, false,
       [one](const auto& w) { (void)w.template rpc_sync<remote::sum>(callee, one, one); }},
  };
}

// Another thread of the calling process keeps a handler of the callee blocked.
class own_blocker {
 public:
  explicit own_blocker(const ferry::worker& caller)
      : thread_([this, &caller] {
          try {
            while (!stop_.load()) caller.rpc_sync<remote::block_for>(callee, 100);
          } catch (const std::exception& e) {
            std::fprintf(stderr, "the blocking caller: %s\n", e.what());
          }
        }) {}
  ~own_blocker() {
    stop_.store(true);
    thread_.join();
  }
  own_blocker(const own_blocker&) = delete;
  own_blocker& operator=(const own_blocker&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Allocations of each side per call. Within one process the sides cannot be distinguished.
void report_allocations(report& out, const std::string& prefix, const call_case& what, const worker_pair& pair) {
  if (!can_count_allocations()) return;
  constexpr int count = 1000;
  const ferry::worker& caller = pair.caller();
  struct both {
    double here;
    double there;
  };
  // The allocations of the counting itself are subtracted: measured with zero calls.
  const auto counted = [&](int calls) -> both {
    const auto there = caller.rpc_sync<remote::counted_allocations>(callee);
    const auto here = allocations();
    for (int i = 0; i != calls; ++i) what.once(caller);
    const auto of_caller = allocations() - here;
    const auto of_callee = caller.rpc_sync<remote::counted_allocations>(callee) - there;
    return {static_cast<double>(of_caller), static_cast<double>(of_callee)};
  };
  for (int i = 0; i != 200; ++i) what.once(caller);
  caller.rpc_sync<remote::switch_counting>(callee, true);
  count_allocations(true);
  const both nothing = counted(0);
  const both calls = counted(count);
  caller.rpc_sync<remote::switch_counting>(callee, false);
  count_allocations(false);
  const auto row = [&](const char* side, double value, bool targeted) {
    const auto bound = targeted ? std::optional<target>(target{4, false, false}) : std::nullopt;
    out.add({.name = prefix + what.name + "/allocations/" + side, .value = value / count, .unit = "/call", .n = count},
            bound);
  };
  if (pair.callee_process() == 0) {
    row("both", calls.here - nothing.here, false);
  } else {
    row("caller", calls.here - nothing.here, what.targeted);
    row("callee", calls.there - nothing.there, what.targeted);
  }
}

void measure(report& out, const options& chosen, const std::string& transport, pin_mode pin, const mode& how) {
  const std::string prefix = transport + "/" + std::string(name_of(pin)) + "/" + how.name + "/";
  std::vector<call_case> wanted;
  for (call_case& one : calls()) {
    if ((one.in_every_mode || (!how.bystander && !how.own_blocker)) && chosen.wants(prefix + one.name)) {
      wanted.push_back(std::move(one));
    }
  }
  if (wanted.empty()) return;
  const auto window = chosen.window_or(40ms);
  const bool within = transport == "inproc";
  // Spinning on one core means waiting for the other's time slice to end.
  const bool spin = !how.sleeping && pin != pin_mode::same_core && processors().size() > 1;
  // Through shared memory: spinning in a ring, sleeping in the socket beside it.
  const bool ring = transport == "shm" && spin;
  const std::string baseline_name = ring     ? "raw ring, spinning"
                                    : within ? (spin ? "threads, spinning" : "threads, futex")
                                             : (spin ? "raw spinning" : "raw blocking");

  worker_pair pair(
      {.transport = transport, .sleeping = how.sleeping, .busy_poll = how.busy_poll, .bystander = how.bystander}, pin);
  std::optional<raw_pair> raw;
  if (!within) raw.emplace(transport == "shm" ? "unix" : transport, pin);
  std::optional<own_blocker> blocker;
  if (how.own_blocker) blocker.emplace(pair.caller());
  const auto measure_raw = [&](std::size_t message, std::chrono::nanoseconds length) {
    return ring     ? ring_round_trips(message, length)
           : within ? thread_round_trips(spin, pin, length)
                    : raw->ping_pong(message, spin ? waiting::spinning : waiting::blocking, length);
  };

  // One baseline for each message size; threads transfer no bytes.
  std::map<std::size_t, timing> baselines;
  const auto size_of = [&](const call_case& one) { return within ? std::size_t{0} : one.message; };
  for (const call_case& one : wanted) baselines[size_of(one)];
  std::vector<timing> times(wanted.size());
  for (const call_case& one : wanted) time_each(window / 2, 200, [&] { one.once(pair.caller()); });
  pair.pin();
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    for (auto& [message, measured] : baselines) {
      if (chosen.alone) break;
      auto samples = measure_raw(message, window);
      measured.add(samples);
    }
    for (std::size_t i = 0; i != wanted.size(); ++i) {
      for (int warm = 0; warm != 50; ++warm) wanted[i].once(pair.caller());
      auto samples = time_each(window, 20, [&] { wanted[i].once(pair.caller()); });
      times[i].add(samples);
    }
  }

  out.section(prefix);
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    const call_case& one = wanted[i];
    std::optional<target> bound;
    if (one.targeted && !within) {
      if (how.sleeping) {
        bound = target{1.25, false, true};
      } else if (pin != pin_mode::same_core && !ring) {
        bound = target{1.5, false, true};
      }
    }
    const std::string compared = within ? baseline_name : baseline_name + " " + std::to_string(one.message) + " B";
    out.add(prefix + one.name, times[i], compared, chosen.alone ? nullptr : &baselines.at(size_of(one)), bound);
  }
  if (!how.bystander && !how.own_blocker) {
    for (const call_case& one : wanted) report_allocations(out, prefix, one, pair);
  }
}

int run(const options& chosen) {
  report out("latency", chosen);
  for (const std::string transport : {"tcp", "unix", "shm", "inproc"}) {
    const bool within = transport == "inproc";
    std::vector usual{pin_mode::same_core, pin_mode::two_cores};
    if (within) usual.push_back(pin_mode::unpinned);
    const auto pins = chosen.pins_or(usual);
    for (const pin_mode pin : pins) {
      for (const mode& how : modes) {
        if (within && (how.bystander || how.busy_poll)) continue;
        if (how.busy_poll && (pin == pin_mode::same_core || processors().size() < 2)) continue;
        if (chosen.quick && how.own_blocker) continue;
        measure(out, chosen, transport, pin, how);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  auto roles = worker_roles();
  roles.emplace(raw_role, serve_raw);
  run_role(argc, argv, roles);
  const options chosen = read_options(argc, argv, "latency: round trips of small calls against bare sockets");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(180));
  try {
    return run(chosen);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "latency: %s\n", e.what());
    return 1;
  }
}

// Small calls per second with 64 of them in flight, in four styles of user code, over tcp and unix against the same number of
// messages of the same size over a bare socket. Over shm there is no such thing to compare with.
//
//   continuations  the completion of each call makes the next
//   futures        one thread goes through a ring of 64 futures: get() the oldest, call again
//   coroutines     64 coroutines that co_await a call each, in a loop
//   notify         one-way calls, counted by the callee

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/ferry.hpp>

#include "support/calls_in_flight.hpp"
#include "support/handlers.hpp"
#include "support/options.hpp"
#include "support/raw_socket.hpp"
#include "support/report.hpp"
#include "support/statistics.hpp"
#include "support/worker_pair.hpp"

namespace ferry_bench {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t small_message = ferry::frame_header::encoded_size + 8;

// Of calls a second: with continuations and coroutines, and with one thread that goes through its futures.
struct wanted_rates {
  double calls;
  double futures;
};
wanted_rates wanted_over(std::string_view transport) {
  if (transport == "shm") return {1'000'000, 400'000};
  return {600'000, 400'000};
}

ferry::task<std::size_t> call_repeatedly(const ferry::worker& caller, clock::time_point until) {
  std::size_t calls = 0;
  do {
    for (int i = 0; i != 16; ++i, ++calls) co_await caller.rpc_async<remote::add>(callee, 1, 2);
  } while (clock::now() < until);
  co_return calls;
}

double coroutines(const ferry::worker& caller, std::chrono::nanoseconds window) {
  const auto started = clock::now();
  std::vector<ferry::future<std::size_t>> running;
  for (std::size_t i = 0; i != in_flight; ++i)
    running.push_back(ferry::start(call_repeatedly(caller, started + window)));
  std::size_t calls = 0;
  for (auto& one : running) calls += one.get();
  return per_second(calls, started);
}

double one_way(const ferry::worker& caller, std::chrono::nanoseconds window) {
  // Bounded bursts, so that the callee is never far behind; a burst ends when the callee has run it all.
  constexpr std::size_t burst = 8192;
  const std::uint64_t before = caller.rpc_sync<remote::noted>(callee);
  std::size_t calls = 0;
  const auto started = clock::now();
  do {
    for (std::size_t i = 0; i != burst; ++i) caller.notify<remote::note>(callee, 1);
    calls += burst;
    while (caller.rpc_sync<remote::noted>(callee) - before != calls) {
    }
  } while (clock::now() - started < window);
  return per_second(calls, started);
}

struct style {
  const char* name;
  double (*run)(const ferry::worker&, std::chrono::nanoseconds);
};
constexpr style styles[] = {
    {"continuations", continuations}, {"futures", futures}, {"coroutines", coroutines}, {"notify", one_way}};

void measure(report& out, const options& chosen, const std::string& transport, pin_mode pin) {
  const std::string prefix = transport + "/" + std::string(name_of(pin)) + "/";
  std::vector<style> wanted;
  for (const style& one : styles) {
    if (chosen.wants(prefix + one.name)) wanted.push_back(one);
  }
  if (wanted.empty()) return;
  const auto window = chosen.window_or(250ms);
  worker_pair pair({.transport = transport}, pin);
  const bool over_sockets = transport != "shm" && !chosen.alone;
  std::optional<raw_pair> raw;
  if (over_sockets) raw.emplace(transport, pin);
  for (const style& one : wanted) one.run(pair.caller(), window / 4);
  pair.pin();

  repeated batched;
  repeated single;
  std::vector<repeated> rates(wanted.size());
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    if (over_sockets) {
      batched.add(raw->stream_messages(small_message, in_flight, true, window));
      single.add(raw->stream_messages(small_message, in_flight, false, window));
    }
    for (std::size_t i = 0; i != wanted.size(); ++i) rates[i].add(wanted[i].run(pair.caller(), window));
  }

  out.section(prefix);
  const auto n = static_cast<std::size_t>(chosen.repeats);
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    const auto goals = wanted_over(transport);
    out.add(prefix + wanted[i].name, rates[i], "/s", over_sockets ? "raw, batches of 64" : "",
            over_sockets ? &batched : nullptr, n,
            target{wanted[i].run == futures ? goals.futures : goals.calls, true, false});
  }
  if (!over_sockets) return;
  out.add(prefix + "raw-batched", batched, "/s", "", nullptr, n);
  out.add(prefix + "raw-one-by-one", single, "/s", "raw, batches of 64", &batched, n);
}

}  // namespace
}  // namespace ferry_bench

int main(int argc, char** argv) {
  using namespace ferry_bench;
  auto roles = worker_roles();
  roles.emplace(raw_role, serve_raw);
  run_role(argc, argv, roles);
  const options chosen = read_options(argc, argv, "rate: small calls per second, 64 under way");
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(240));
  try {
    report out("rate", chosen);
    for (const pin_mode pin : chosen.pins_or({pin_mode::two_cores, pin_mode::same_core, pin_mode::unpinned})) {
      for (const char* transport : {"tcp", "unix", "shm"}) measure(out, chosen, transport, pin);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rate: %s\n", e.what());
    return 1;
  }
}

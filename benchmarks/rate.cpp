// Small calls per second over TCP with 64 of them in flight, in four styles of user code, against the same number of
// messages of the same size over a bare socket.
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
#include <string>
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
constexpr double wanted_rate = 300'000;

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

void measure(report& out, const options& chosen, pin_mode pin) {
  const std::string prefix = "tcp/" + std::string(name_of(pin)) + "/";
  std::vector<style> wanted;
  for (const style& one : styles) {
    if (chosen.wants(prefix + one.name)) wanted.push_back(one);
  }
  if (wanted.empty()) return;
  const auto window = chosen.window_or(250ms);
  worker_pair pair({.transport = "tcp"}, pin);
  raw_pair raw("tcp", pin);
  for (const style& one : wanted) one.run(pair.caller(), window / 4);
  pair.pin();

  repeated batched;
  repeated single;
  std::vector<repeated> rates(wanted.size());
  for (int repeat = 0; repeat != chosen.repeats; ++repeat) {
    if (!chosen.alone) {
      batched.add(raw.stream_messages(small_message, in_flight, true, window));
      single.add(raw.stream_messages(small_message, in_flight, false, window));
    }
    for (std::size_t i = 0; i != wanted.size(); ++i) rates[i].add(wanted[i].run(pair.caller(), window));
  }

  out.section(prefix);
  const auto n = static_cast<std::size_t>(chosen.repeats);
  for (std::size_t i = 0; i != wanted.size(); ++i) {
    out.add(prefix + wanted[i].name, rates[i], "/s", "raw, batches of 64", chosen.alone ? nullptr : &batched, n,
            target{wanted_rate, true, false});
  }
  if (chosen.alone) return;
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
  end_after(chosen.limit.count() != 0 ? chosen.limit : std::chrono::seconds(120));
  try {
    report out("rate", chosen);
    for (const pin_mode pin : chosen.pins_or({pin_mode::two_cores, pin_mode::same_core, pin_mode::unpinned})) {
      measure(out, chosen, pin);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rate: %s\n", e.what());
    return 1;
  }
}

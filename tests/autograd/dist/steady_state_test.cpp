// A thousand passes leave nothing behind.

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include <malloc.h>

#include "dist_test.hpp"
#include "sanitizers.hpp"

using namespace dist_test;

namespace steady_state_test {

constexpr int rounds = ferry_test::sanitized ? 200 : 1000;

std::size_t threads_here() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) return std::stoul(line.substr(8));
  }
  return 0;
}
// Bytes that the process has allocated and not freed.
std::size_t allocated() {
  const struct mallinfo2 all = ::mallinfo2();
  return all.uordblks + all.hblkhd;
}

tensor nested(const tensor& a, const tensor& b, const std::string& next) {
  return ferry::rpc_sync<mul>(next, a, b) + a;
}

// The record of the last events is full before the first reading.
ferry_test::cluster_options few_events() {
  ferry_test::cluster_options options;
  options.configure = [](ferry::worker_config& config) { config.flight_events = 16; };
  return options;
}

// No growth between two readings: what varies (caches, threads that start late) is a fraction of what one leak a pass would be.
void check_growth(const char* what, std::size_t before, std::size_t after, std::size_t allowance) {
  CAPTURE(what);
  CAPTURE(before);
  CAPTURE(after);
  CHECK(after <= before + allowance);
}

}  // namespace steady_state_test

using namespace steady_state_test;

TEST_CASE("[row 274] a thousand passes over one graph, and their memory") {
  cluster group(3, few_events());
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor c = ferry::sum(group[0].rpc_sync<nested>("worker1", a, b, "worker2"));
  const auto run = [&](int count) {
    for (int i = 0; i != count; ++i) context.backward(c, {.retain_graph = true});
  };
  run(rounds);
  const std::size_t memory = allocated();
  const std::size_t threads = threads_here();
  run(rounds);
  if (!ferry_test::sanitized) check_growth("memory", memory, allocated(), static_cast<std::size_t>(rounds) * 32);
  check_growth("threads", threads, threads_here(), 2);
  const double times = 2 * rounds;
  CHECK(numbers(context.gradients().at(a)) == vec{times * 5, times * 6, times * 7});
  CHECK(numbers(context.gradients().at(b)) == vec{times * 1, times * 2, times * 3});
}

TEST_CASE("[row 288] a thousand contexts, each with six calls in a chain, a remote object, and a pass") {
  for (const int size : {1, 3}) {
    cluster group(size, few_events());
    const tensor a = leaf({1, 2, 3});
    const tensor b = leaf({4, 5, 6});
    const auto run = [&](int count) {
      for (int i = 0; i != count; ++i) {
        const dist::context context(group[0]);
        tensor whole = a;
        for (int hop = 0; hop != 6; ++hop) whole = group[0].rpc_sync<add>(hop % size, whole, b);
        const auto remote = group[0].remote<mul>(size - 1, whole, b);
        context.backward(ferry::sum(remote.to_here()));
        CHECK(numbers(context.gradients().at(a)) == vec{4, 5, 6});
        CHECK(numbers(context.gradients().at(b)) == vec{1 + 48, 2 + 60, 3 + 72});
      }
      await_no_contexts(group);
    };
    run(rounds / 2);
    const std::size_t memory = allocated();
    const std::size_t threads = threads_here();
    run(rounds);
    if (!ferry_test::sanitized) check_growth("memory", memory, allocated(), static_cast<std::size_t>(rounds) * 32);
    check_growth("threads", threads, threads_here(), 2);
  }
}

TEST_CASE("passes that fail leave nothing either") {
  cluster group(2, few_events());
  const tensor a = leaf({1, 2, 3});
  const dist::context context(group[0]);
  const tensor c = ferry::sum(group[0].rpc_sync<mul>("worker1", a, a));
  context.backward(c);
  const auto run = [&](int count) {
    for (int i = 0; i != count; ++i) CHECK_THROWS_AS(context.backward(c), const ferry::error&);  // the graph is used up
  };
  run(rounds);  // as many failures as a context remembers
  const std::size_t memory = allocated();
  run(rounds);
  if (!ferry_test::sanitized) check_growth("memory", memory, allocated(), static_cast<std::size_t>(rounds) * 32);
  CHECK(passes(group[0]) + passes(group[1]) == 0);
}

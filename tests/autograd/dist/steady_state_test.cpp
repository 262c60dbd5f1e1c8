// A thousand passes leave nothing behind.

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include <malloc.h>

#include "dist_test.hpp"
#include "sanitizers.hpp"

namespace steady_state_test {

using namespace dist_test;

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

// Whether rounds allocate what they do not free. Threads keep freed blocks for themselves, and malloc counts these as allocated, so
// that the first rounds on each thread look like growth: a leak is growth that does not end.
template <class Run>
void check_no_growth(const Run& run) {
  constexpr int readings = 12;
  constexpr std::size_t allowance = static_cast<std::size_t>(rounds) * 32;
  run(rounds);
  const std::size_t threads = threads_here();
  std::vector<std::size_t> seen{allocated()};
  bool settled = ferry_test::sanitized;  // allocators of sanitizers say nothing of it
  for (int i = 0; i != readings && !settled; ++i) {
    run(rounds);
    seen.push_back(allocated());
    settled = seen.back() <= seen[seen.size() - 2] + allowance;
  }
  CAPTURE(seen.front());
  CAPTURE(seen.back());
  CHECK_MESSAGE(settled, "memory grows with every reading");
  CHECK(threads_here() <= threads + 2);
}

TEST_CASE("[row 274] a thousand passes over one graph, and their memory") {
  cluster group(3, few_events());
  const tensor a = leaf({1, 2, 3});
  const tensor b = leaf({4, 5, 6});
  const dist::context context(group[0]);
  const tensor c = ferry::sum(group[0].rpc_sync<nested>("worker1", a, b, "worker2"));
  double times = 0;
  const auto run = [&](int count) {
    for (int i = 0; i != count; ++i, ++times) context.backward(c, {.retain_graph = true});
  };
  check_no_growth(run);
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
    check_no_growth(run);
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
  check_no_growth(run);
  CHECK(passes(group[0]) + passes(group[1]) == 0);
}

}  // namespace steady_state_test

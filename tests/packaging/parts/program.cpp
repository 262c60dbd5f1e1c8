#include <cstdio>

#include "scaling.hpp"

namespace {
double add_ten(double value) { return value + 10; }
const ferry::provide<ferry::named<"program.add_ten", add_ten>> methods;
}  // namespace

int main() {
  ferry::worker self = ferry::init_rpc();
  if (self.id().value == 0) {
    // One process has one current worker and one table of methods, whichever part asks.
    const double tripled = ferry::rpc_sync<scaling::triple>("worker1", 2.0);
    const double added = scaling::ask_program("worker1", 3.0);
    const int sum = ferry::rpc_sync<scaling::both>("worker1", 1) + scaling::call_both("worker1", 2);
    std::printf("tripled %g, added %g, both %d\n", tripled, added, sum);
  }
  self.shutdown();
}

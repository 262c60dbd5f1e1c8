// A program's own test with injected faults, from nothing but what is installed.

#include <ferry/test_kit/faulty.hpp>

#include <ferry/ferry.hpp>

#include <cstdio>

using namespace std::chrono_literals;

int twice(int x) { return 2 * x; }

int main() {
  ferry::fault_injector faults(1);
  auto options = ferry::construct_rpc_backend_options<ferry::faulty<ferry::native>>();
  options.faults = faults;
  ferry::worker self = ferry::init_rpc({.rpc_timeout = 5s}, options);
  faults.add({.action = ferry::fault_action::drop, .kinds = ferry::message_kinds::request});
  try {
    (void)self.rpc_sync<twice>({self.id(), {.timeout = 20ms}}, 1);
    std::puts("a request that was dropped got a reply");
    return 1;
  } catch (const ferry::rpc_timeout&) {
  }
  faults.clear();
  if (self.rpc_sync<twice>(self.id(), 21) != 42) return 1;
  self.shutdown();
}

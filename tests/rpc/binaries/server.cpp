// Joins a group of two as worker 1 and serves a list of functions from a static archive, and nothing else.

#include "arithmetic.hpp"

#include <cstdio>
#include <exception>

#include <ferry/ferry.hpp>

// Called nowhere: only the list keeps others from calling it.
int calls_unlisted() { return ferry::rpc_sync<arithmetic::unlisted>(0, 1); }

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    ferry::set_log_level(ferry::log_level::off);
    ferry::serve<ferry::named<"dot", arithmetic::dot>, ferry::named<"letters", arithmetic::letters>>();
    ferry::serve<arithmetic::negate>();
    ferry::worker self = ferry::init_rpc({.name = "server", .rank = 1, .world_size = 2, .init_method = argv[1]});
    self.shutdown();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "server: %s\n", e.what());
    return 1;
  }
}

// A program that joins a group of two as worker 1, with methods of its own (stranger.hpp).

#define FERRY_TEST_STRANGER
#include "stranger.hpp"

#include <cstdio>
#include <exception>

#include <ferry/ferry.hpp>

// Never called: it names what this program serves.
int serves() {
  return ferry::rpc_sync<stranger::shared>(0, 1) + ferry::rpc_sync<stranger::take>(0, stranger::versioned{});
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    ferry::set_log_level(ferry::log_level::off);
    ferry::worker self = ferry::init_rpc({.name = "stranger", .rank = 1, .world_size = 2, .init_method = argv[1]});
    self.shutdown();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "stranger: %s\n", e.what());
    return 1;
  }
}

// A program that joins a group of two as worker 1, with methods of its own (stranger.hpp).

#define FERRY_TEST_STRANGER
#include "stranger.hpp"

#include <cstdio>
#include <exception>

#include <ferry/ferry.hpp>

// Never called: it names what this program serves.
int serves() {
  (void)ferry::rpc_sync<static_cast<double (*)(int)>(stranger::of_one_name)>(0, 1);
  (void)ferry::rpc_sync<static_cast<int (*)(double, int)>(stranger::of_one_name)>(0, 1., 1);
  (void)ferry::remote<stranger::shared>(0, 1).to_here();
  return ferry::rpc_sync<stranger::shared>(0, 1) + ferry::rpc_sync<stranger::take>(0, stranger::versioned{});
}

// It accepts connections of its peers, and serves, until its destructor, which runs when the program has ended, shuts it down.
ferry::worker of_the_program;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    ferry::set_log_level(ferry::log_level::off);
    of_the_program = ferry::init_rpc({.name = "stranger",
                                      .rank = 1,
                                      .world_size = 2,
                                      .init_method = argv[1],
                                      .secret = ferry::authentication_available() ? "of strangers" : ""});
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "stranger: %s\n", e.what());
    return 1;
  }
}

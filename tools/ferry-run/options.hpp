#pragma once

// The command line of ferry-run.

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferry_run {

inline constexpr int largest_worker_count = 4096;

struct options {
  int workers = 0;
  std::string address;     ///< MASTER_ADDR of the workers
  std::uint16_t port = 0;  ///< MASTER_PORT of the workers; 0: a free one is picked
  std::chrono::milliseconds grace{10000};
  std::vector<std::string> command;
  bool show_help = false;
  bool show_version = false;
};

/// The command line makes no sense; what() says why.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the command line, and MASTER_ADDR and MASTER_PORT from the environment for what it leaves open. Throws
/// usage_error.
options parse(int argc, char** argv);

extern const char* const usage_text;

}  // namespace ferry_run

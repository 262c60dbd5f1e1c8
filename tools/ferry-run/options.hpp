#pragma once

// The command line of ferry-run.

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "endpoint.hpp"

namespace ferry_run {

inline constexpr int largest_worker_count = 4096;
inline constexpr int largest_node_count = 1024;

struct options {
  int workers = 0;
  std::string address;     ///< MASTER_ADDR of the workers; empty with several nodes: the host of the rendezvous
  std::uint16_t port = 0;  ///< MASTER_PORT of the workers; 0: a free one is chosen
  std::chrono::milliseconds grace{10000};
  int nodes = 1;
  std::optional<int> node_rank = std::nullopt;
  endpoint meet_at;  ///< with several nodes
  std::string job_id;
  std::chrono::milliseconds meeting_limit{300000};
  std::string flight_records;  ///< FERRY_FLIGHT_DIRECTORY of the workers; empty: as it is
  bool wants_secret = false;   ///< ferry-run makes one: workers of one machine have none, and must not do without
  std::vector<std::string> command;
  bool show_help = false;
  bool show_version = false;
};

/// The command line is invalid; what() gives the reason.
struct usage_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the command line, and from the environment MASTER_ADDR and MASTER_PORT for values that it does not set, and
/// whether a secret is there or can be done without. Throws usage_error.
options parse(int argc, char** argv);

extern const char* const usage_text;

}  // namespace ferry_run

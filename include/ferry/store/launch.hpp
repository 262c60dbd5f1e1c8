#pragma once

// The rank, world size and rendezvous that the launcher of this process provides.

#include <cstdint>
#include <optional>
#include <string>

namespace ferry::inline v0 {

/// What the environment of this process says about its place among the workers. docs/launching.md lists the variables
/// of each launcher.
struct launch_info {
  /// "environment" (RANK and WORLD_SIZE, as ferry-run and torchrun set them), "Open MPI", "Slurm", "MPICH" (and what
  /// shares its process manager: Intel MPI, MVAPICH) or "PMIx"; empty if nothing was found.
  std::string launcher;
  std::optional<int> rank;
  std::optional<int> world_size;
  std::optional<int> local_rank;        ///< among the workers on this machine, from 0: to select a device
  std::optional<int> local_world_size;  ///< the number of workers on this machine
  std::optional<int> node_rank;         ///< of this machine among those of the job, from 0
  /// Where worker 0 serves the rendezvous of env://: MASTER_ADDR, else derived from the launcher if possible.
  std::optional<std::string> master_address;
  /// MASTER_PORT (under torchrun, whose own store uses it, the port after it), else derived if possible.
  std::optional<std::uint16_t> master_port;
};

/// Reads the environment. Members without a variable stay empty. Throws errc::missing_environment, with the variable
/// and its value in the text, for values that are malformed or that contradict each other. Must not run while another
/// thread changes the environment.
[[nodiscard]] launch_info this_launch();

}  // namespace ferry::inline v0

#pragma once

// A double of NCCL for the members of one process, on the double of the CUDA runtime: its collectives run in the streams that they are
// given, and wait there, for ever, for the other ranks. Ranks that begin different collectives, or in another order, are noted, and
// so is what is done with a communicator that is not there.

#include <cstdint>
#include <string>
#include <vector>

#include "group/nccl_library.hpp"

namespace fake_nccl {

[[nodiscard]] const ferry::detail::nccl_functions& functions();

/// Everything as at the start.
void reset();
/// How many collectives have run at all their ranks.
[[nodiscard]] std::uint64_t completed();
/// How many calls there were of functions that begin one.
[[nodiscard]] std::uint64_t begun();
/// Communicators that are there.
[[nodiscard]] int communicators();
[[nodiscard]] std::uint64_t aborted();
/// What no caller of NCCL may do.
[[nodiscard]] std::vector<std::string> complaints();

/// Each function that begins something is in progress for so many questions.
void set_slowness(int questions);
/// The next communicator is not made: at once, or later; ncclSystemError.
void fail_next_communicator(bool later);
/// The next collective of that rank is refused.
void fail_next_collective(int rank);
/// From now on communicators report an error.
void break_network();
/// The next collective of that rank is begun by NCCL and never comes to its device.
void lose_next_collective(int rank);

}  // namespace fake_nccl

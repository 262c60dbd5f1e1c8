#pragma once

// Rank, world size and rendezvous address from the variables that launchers set.

#include <optional>
#include <string>

#include <ferry/store/launch.hpp>

namespace ferry::inline v0::detail {

/// What a rendezvous needs from the environment.
struct launch_request {
  bool rank = false;
  bool world_size = false;
};

/// this_launch(), in which contradictions matter only as far as they affect what is requested. A requested value that
/// is not set is an error, errc::missing_environment.
launch_info required_launch(launch_request requested);

/// The rendezvous address of `info`; errc::missing_environment if it lacks a part.
struct launch_meeting {
  std::string host;
  std::uint16_t port;
};
launch_meeting meeting_of(const launch_info& info);

}  // namespace ferry::inline v0::detail

#pragma once

// The baseline of a group that starts: processes that meet, connect to all others by unix sockets, exchange a message with each, and end.

#include <cstdint>
#include <string>
#include <vector>

namespace ferry_bench {

/// What a member reports to its parent, in nanoseconds of the clock that all processes share.
struct member_times {
  std::int64_t entered = 0;      ///< main()
  std::int64_t initialised = 0;  ///< it may call all others
  std::int64_t called = 0;       ///< all members have answered
  std::uint64_t descriptors = 0;
};
std::int64_t now_of_all_processes();
std::uint64_t open_descriptors();

/// The role. Arguments: a folder for the sockets, rank, size. It writes a byte to its parent once it listens, and waits for one, which says
/// that all do.
int run_bare_member(const std::vector<std::string>& arguments);

}  // namespace ferry_bench

#pragma once

// What a worker shows of its collectives. Those are made on a floor above, which tells of them here.

#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/rpc/debug.hpp>

namespace ferry::inline v0::detail {

class worker_core;

struct collectives_of_worker {
  std::vector<pending_collective_info> pending;  ///< oldest first; of collectives of a whole group without its members
  std::vector<group_progress_info> groups;
};

/// Adds what it knows, with ages at `now`. Any thread calls it, at any time.
using collective_source = void (*)(const worker_core& worker, clock::time_point now, collectives_of_worker& to);
/// During static initialisation.
void add_collective_source(collective_source source);

}  // namespace ferry::inline v0::detail

#pragma once

// barrier: waits until all members of a set have called it.

#include <ferry/rpc/detail/members.hpp>
#include <ferry/rpc/worker.hpp>

namespace ferry::inline v0 {

/// Returns once every member has called it with the same members: an all_gather without values, with the same rules,
/// limits and errors (all_gather.hpp). For a single worker it returns at once. The collecting worker, the first by
/// name, returns last: the answers to all other members have been sent by then. Thread-safe.
void barrier(const members& among = all_workers, timeout limit = {});

}  // namespace ferry::inline v0

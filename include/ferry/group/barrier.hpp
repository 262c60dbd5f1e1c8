#pragma once

// barrier: wait for each other.

#include <ferry/rpc/detail/members.hpp>
#include <ferry/rpc/worker.hpp>

namespace ferry::inline v0 {

/// Returns once every member has called it with the same members: an all_gather of nothing (all_gather.hpp), with its
/// rules, limits and errors. Of a single worker it returns at once. The one that collects, the first by name, returns last:
/// then the answers to the others have been sent. Thread-safe.
void barrier(const members& among = all_workers, timeout limit = {});

}  // namespace ferry::inline v0

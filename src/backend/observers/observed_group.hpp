#pragma once

// The members of a group as its store tells of them, for a tool that is no member. Writes nothing.

#include <memory>
#include <string>
#include <vector>

#include <ferry/base/time.hpp>
#include <ferry/store/store.hpp>

#include "../links/peers.hpp"

namespace ferry::inline v0::detail {

struct observed_member {
  worker_record record;
  bool leaving;      ///< a dynamic group; it has not ended yet
  std::string lost;  ///< why the group has declared it dead; empty: it has not
};

struct observed_group {
  std::string kind;    ///< "static 4, heartbeats 500 ms, ..."
  std::string key;     ///< of its connections
  int world_size = 0;  ///< 0: the group is dynamic
  /// By id. Of a static group that is still forming: those that have published themselves; of a dynamic one: those that
  /// are members now.
  std::vector<observed_member> members;
};

/// Throws errc::unknown_worker if no group has met in the store, errc::malformed if it holds something else, and what
/// the store throws.
[[nodiscard]] observed_group read_group(const std::shared_ptr<store>& where, deadline until);

}  // namespace ferry::inline v0::detail

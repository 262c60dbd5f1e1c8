#pragma once

// One look at a group.

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ferry/rpc/group_observer.hpp>

namespace ferry_top {

struct observed {
  ferry::observed_worker who;
  std::optional<ferry::worker_snapshot> snapshot;  ///< none: it could not be asked
  std::optional<ferry::observed_clock> clock;
  std::string why;  ///< it could not be asked
};

struct observation {
  std::string kind;  ///< of the group
  std::chrono::system_clock::time_point time;
  std::vector<observed> workers;  ///< by id
};

/// What flight files say, in place of a look; of a directory: all in it, by name. Files that cannot be read are workers that
/// could not be asked. Throws std::runtime_error if there is no file.
observation read_files(const std::vector<std::string>& paths);

/// Asks all workers, several at once. Workers that were lost are not asked.
observation look(ferry::group_observer& group, bool with_events);

}  // namespace ferry_top

#pragma once

// Which workers run in this process, so that errors can tell a second one from an earlier one of another process.

#include <ferry/base/ids.hpp>

namespace ferry::inline v0::detail {

/// One worker of this process, from its start to its end.
class local_incarnation {
 public:
  explicit local_incarnation(incarnation_id which);
  ~local_incarnation();
  local_incarnation(const local_incarnation&) = delete;
  local_incarnation& operator=(const local_incarnation&) = delete;

 private:
  const incarnation_id which_;
};

/// Thread-safe.
[[nodiscard]] bool runs_in_this_process(incarnation_id which);

}  // namespace ferry::inline v0::detail

#pragma once

// Ends the workers' process groups when ferry-run itself is killed.

#include <initializer_list>

#include <sys/types.h>

namespace ferry_run {

/// A small process that runs as long as ferry-run. The kernel kills only the workers themselves when ferry-run dies
/// (PR_SET_PDEATHSIG); this one also kills their children. Its pipe from ferry-run closes with ferry-run, however that
/// ends.
class guard {
 public:
  /// The guard does not keep `outputs` open, which others may read. Throws std::system_error.
  explicit guard(std::initializer_list<int> outputs);
  guard(const guard&) = delete;
  guard& operator=(const guard&) = delete;
  /// Kills the groups that are still watched.
  ~guard();

  void watch(pid_t group) { tell(group); }
  /// The group has ended; its number may be reused.
  void forget(pid_t group) { tell(-group); }

 private:
  void tell(pid_t group);
  int pipe_ = -1;
  pid_t process_ = -1;
};

}  // namespace ferry_run

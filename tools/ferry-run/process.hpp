#pragma once

// Starting one worker.

#include <csignal>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <sys/types.h>

namespace ferry_run {

/// The state that a worker inherits instead of ferry-run's own changes.
struct inherited_state {
  sigset_t signal_mask{};
  struct sigaction on_child {};
  struct sigaction on_pipe {};
  rlimit descriptors{};
};

struct started_process {
  pid_t pid = -1;
  int stdout_pipe = -1;  ///< read ends, not blocking; the caller owns them
  int stderr_pipe = -1;
};

/// Starts `command` with `environment` in a process group of its own, which the kernel kills when ferry-run dies.
/// Returns once the program runs. Throws std::system_error: its code is that of exec when the program could not be run
/// (exec_failed is then set), else of the earlier failure.
started_process start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                      const inherited_state& inherited, bool& exec_failed);

}  // namespace ferry_run

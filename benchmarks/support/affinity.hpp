#pragma once

// The processors on which the two sides of a measurement run.

#include <string_view>
#include <vector>

#include <sys/types.h>

namespace ferry_bench {

enum class pin_mode {
  same_core,  ///< both sides on one processor
  two_cores,  ///< one each
  unpinned,   ///< wherever the kernel schedules them
};
enum class side { caller, callee };

std::string_view name_of(pin_mode mode);

/// The processors that this process could use when it started: at most two, of different cores where there are such.
const std::vector<int>& processors();
bool possible(pin_mode mode);

/// Pins every thread of a process (0: this one) and, by inheritance, those it starts later.
void pin_process(pid_t process, pin_mode mode, side which);
/// Pins the calling thread alone to processors()[index], or frees it (-1).
void pin_thread(int index);

}  // namespace ferry_bench

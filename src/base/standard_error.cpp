#include "standard_error.hpp"

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unique_fd.hpp"

namespace ferry::inline v0::detail {
namespace {

// Standard error belongs to the program, and perhaps to other processes: its flags must not change. So a pipe or a terminal
// is opened once more, for this line, without blocking; a socket takes a flag with each message; files do not block.
class output {
 public:
  void write(std::string_view line) {
    const std::lock_guard lock(mutex_);
    open();
    if (lost_ != 0) {
      const std::string text = "ferry[" + std::to_string(::getpid()) + "] warning: " + std::to_string(lost_) +
                               " lines were lost: standard error did not take them\n";
      if (!put(text)) {
        ++lost_;
        return own_.reset();
      }
      lost_ = 0;
    }
    if (!put(line)) ++lost_;
    own_.reset();
  }

 private:
  void open() {
    struct stat about {};
    const bool known = ::fstat(STDERR_FILENO, &about) == 0;
    is_socket_ = known && S_ISSOCK(about.st_mode);
    may_block_ = known && (S_ISFIFO(about.st_mode) || S_ISCHR(about.st_mode));
    if (may_block_) own_.reset(::open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  }

  bool put(std::string_view text) {
    if (cut_) {
      if (!put_some("\n")) return false;
      cut_ = false;
    }
    const std::size_t whole = text.size();
    while (!text.empty()) {
      const std::size_t taken = put_some(text);
      if (taken == 0) {
        cut_ = text.size() != whole;
        return false;
      }
      text.remove_prefix(taken);
    }
    return true;
  }

  // 0: nothing was taken.
  std::size_t put_some(std::string_view text) const {
    if (may_block_ && !own_) {  // no descriptor is left, or no /proc: the best that remains
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return 0;
      text = text.substr(0, PIPE_BUF);  // which a pipe that is ready takes at once
    }
    for (;;) {
      const ssize_t taken = is_socket_ ? ::send(STDERR_FILENO, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                       : ::write(own_ ? own_.get() : STDERR_FILENO, text.data(), text.size());
      if (taken >= 0) return static_cast<std::size_t>(taken);
      if (errno != EINTR) return 0;
    }
  }

  std::mutex mutex_;  // guards what follows
  bool is_socket_ = false;
  bool may_block_ = false;
  unique_fd own_;
  bool cut_ = false;  // the last line was taken in part
  std::uint64_t lost_ = 0;
};

}  // namespace

void write_line_or_drop(std::string_view line) noexcept {
  static auto* const stderr_output = new output;  // outlives static destruction on purpose
  try {
    stderr_output->write(line);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no memory to say so
  }
}

}  // namespace ferry::inline v0::detail

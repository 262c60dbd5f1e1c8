#include "guard.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <set>
#include <system_error>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ferry_run {
namespace {

[[noreturn]] void stand_guard(int messages, std::initializer_list<int> outputs) {
  setsid();  // no signal from a terminal
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  // Readers of ferry-run's output must not wait for this process.
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, standard);
  for (const int each : outputs) {
    if (each > STDERR_FILENO) close(each);
  }
  std::set<pid_t> groups;
  pid_t message = 0;
  for (;;) {
    const ssize_t count = read(messages, &message, sizeof message);
    if (count < 0 && errno == EINTR) continue;
    if (count != static_cast<ssize_t>(sizeof message)) break;
    if (message > 0) {
      groups.insert(message);
    } else {
      groups.erase(-message);
    }
  }
  for (const pid_t group : groups) kill(-group, SIGKILL);
  _exit(0);
}

}  // namespace

guard::guard(std::initializer_list<int> outputs) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  process_ = fork();
  if (process_ < 0) {
    const int failure = errno;
    close(ends[0]);
    close(ends[1]);
    throw std::system_error(failure, std::generic_category(), "fork");
  }
  if (process_ == 0) {
    close(ends[1]);
    stand_guard(ends[0], outputs);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

guard::~guard() {
  close(pipe_);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void guard::tell(pid_t group) {
  // Fails only when the guard has been killed; the run then continues without one.
  while (write(pipe_, &group, sizeof group) < 0 && errno == EINTR) {
  }
}

}  // namespace ferry_run

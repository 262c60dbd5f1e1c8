#include "process.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../src/base/unique_fd.hpp"

namespace ferry_run {

using ferry::detail::unique_fd;

namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

struct pipe_ends {
  unique_fd read, write;
  pipe_ends() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe");
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));  // exec does not write to it
  result.push_back(nullptr);
  return result;
}

// Runs in the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become(char* const* command, char* const* environment, int input, int output, int errors, int report,
                         pid_t parent, const inherited_state& inherited) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);  // ferry-run died before the line above took effect
  if (dup2(input, STDIN_FILENO) >= 0 && dup2(output, STDOUT_FILENO) >= 0 && dup2(errors, STDERR_FILENO) >= 0) {
    setrlimit(RLIMIT_NOFILE, &inherited.descriptors);
    sigaction(SIGCHLD, &inherited.on_child, nullptr);
    sigaction(SIGPIPE, &inherited.on_pipe, nullptr);
    sigprocmask(SIG_SETMASK, &inherited.signal_mask, nullptr);
    execvpe(command[0], command, environment);
  }
  const int failure = errno;
  // The status is reaped whether or not the parent reads this.
  [[maybe_unused]] const ssize_t told = write(report, &failure, sizeof failure);
  _exit(127);
}

}  // namespace

started_process start(const std::vector<std::string>& command, const std::vector<std::string>& environment,
                      const inherited_state& inherited, bool& exec_failed) {
  exec_failed = false;
  const std::vector<char*> arguments = pointers(command);
  const std::vector<char*> variables = pointers(environment);
  pipe_ends output;
  pipe_ends errors;
  pipe_ends report;  // closes on exec; transfers the errno value of a failed exec
  const unique_fd input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input) fail("open /dev/null");
  const pid_t self = getpid();

  const pid_t pid = fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    become(arguments.data(), variables.data(), input.get(), output.write.get(), errors.write.get(), report.write.get(),
           self, inherited);
  }
  report.write.reset();
  int failure = 0;
  ssize_t count = 0;
  do {
    count = read(report.read.get(), &failure, sizeof failure);
  } while (count < 0 && errno == EINTR);
  if (count != 0) {
    waitpid(pid, nullptr, 0);
    exec_failed = true;
    throw std::system_error(count == sizeof failure ? failure : EIO, std::generic_category(), "exec");
  }
  fcntl(output.read.get(), F_SETFL, O_NONBLOCK);
  fcntl(errors.read.get(), F_SETFL, O_NONBLOCK);
  return {pid, output.read.release(), errors.read.release()};
}

}  // namespace ferry_run

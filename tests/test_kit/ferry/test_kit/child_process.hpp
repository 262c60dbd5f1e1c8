#pragma once

// Runs this test binary again as another process, in a given role.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

namespace ferry::test_kit {

/// A variable that the parent passed to this child; fails the test if it is not set.
inline std::string given(const char* name) {
  const char* value = std::getenv(name);
  REQUIRE_MESSAGE(value != nullptr, name);
  return value ? value : "";
}

/// A running child; killed and reaped if it still runs at the end.
class child_process {
 public:
  /// Runs the test case `name` of this binary, also one that is skipped otherwise, with `variables` added to the
  /// environment. Needs a main() that passes its arguments to doctest.
  child_process(const std::string& name, const std::map<std::string, std::string>& variables) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
    std::vector<std::string> environment;
    for (const auto& [variable, value] : variables) environment.push_back(variable + "=" + value);
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string entry = *each;
      if (!variables.contains(entry.substr(0, entry.find('=')))) environment.push_back(entry);
    }
    std::string filter = name;
    std::replace(filter.begin(), filter.end(), ',', '?');  // doctest treats a comma as the end of the name
    std::vector<std::string> arguments = {"child", "--no-skip", "--minimal", "--test-case=" + filter};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], report_descriptor);
    const int problem = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                                      pointers(environment).data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    report_ = ends[0];
    if (problem != 0) {
      ::close(report_);
      throw std::system_error(problem, std::generic_category(), "posix_spawn");
    }
  }
  /// The same with the test case that is running, which asks current_role() for its role.
  static child_process in_role(const std::string& role, std::map<std::string, std::string> variables) {
    variables["FERRY_TEST_KIT_ROLE"] = role;
    return {doctest::getContextOptions()->currentTest->m_name, variables};
  }
  child_process(child_process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), report_(std::exchange(other.report_, -1)) {}
  child_process(const child_process&) = delete;
  child_process& operator=(child_process&&) = delete;
  ~child_process() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
    if (report_ >= 0) ::close(report_);
  }

  void kill(int signal) const { ::kill(pid_, signal); }

  /// The next line that the child sends with tell_parent; an incomplete one if the child ends.
  std::string read_line() {
    std::string line;
    for (char byte = 0;;) {
      const auto got = ::read(report_, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0 || byte == '\n') return line;
      line += byte;
    }
  }

  /// Waits for its end: the exit status, or 128 plus the signal that killed it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  /// In a child: sends one line for read_line().
  static void tell_parent(const std::string& text) {
    const std::string line = text + "\n";
    REQUIRE(::write(report_descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  }
  /// In a child started by in_role(): the role. Empty in other processes. A child in a role is killed with its parent.
  static std::string current_role() {
    const char* role = std::getenv("FERRY_TEST_KIT_ROLE");
    if (role != nullptr) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return role != nullptr ? role : "";
  }

 private:
  static constexpr int report_descriptor = 3;
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> all;
    for (std::string& each : strings) all.push_back(each.data());
    all.push_back(nullptr);
    return all;
  }
  pid_t pid_ = -1;
  int report_ = -1;
};

}  // namespace ferry::test_kit

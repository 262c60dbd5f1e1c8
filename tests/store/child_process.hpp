#pragma once

// Runs this test binary again as another process, in a role of its own.

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

namespace store_test {

/// A running child; killed and reaped if it is still there at the end.
class child_process {
 public:
  /// Runs the (skipped) test case `role` of this binary with `variables` added to the environment.
  child_process(const std::string& role, const std::map<std::string, std::string>& variables) {
    std::vector<std::string> environment;
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string entry = *each;
      if (!variables.contains(entry.substr(0, entry.find('=')))) environment.push_back(entry);
    }
    std::vector<std::string> arguments = {"test_store", "--no-skip", "--minimal", "--test-case=" + role};
    const int problem = ::posix_spawn(&pid_, "/proc/self/exe", nullptr, nullptr, pointers(arguments).data(),
                                      pointers(environment).data());
    if (problem != 0) throw std::system_error(problem, std::generic_category(), "posix_spawn");
  }
  child_process(child_process&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
  child_process(const child_process&) = delete;
  child_process& operator=(child_process&&) = delete;
  ~child_process() {
    if (pid_ > 0) {
      kill(SIGKILL);
      wait();
    }
  }

  void kill(int signal) const { ::kill(pid_, signal); }

  /// Waits for its end: the exit status, or 128 plus the signal that killed it.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0) {
      if (errno != EINTR) throw std::system_error(errno, std::generic_category(), "waitpid");
    }
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> all;
    for (std::string& each : strings) all.push_back(each.data());
    all.push_back(nullptr);
    return all;
  }
  pid_t pid_ = -1;
};

/// A variable that the parent gave to this child.
inline std::string given(const char* name) {
  const char* value = std::getenv(name);
  REQUIRE_MESSAGE(value != nullptr, name);
  return value ? value : "";
}

}  // namespace store_test

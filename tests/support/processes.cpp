#include "processes.hpp"

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <system_error>

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "watchdog.hpp"

namespace ferry_test {
namespace {

std::map<std::string, role_function>& roles() {
  static std::map<std::string, role_function> instance;
  return instance;
}

[[noreturn]] void fail(const char* what, int problem = errno) {
  throw std::system_error(problem, std::generic_category(), what);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  all.reserve(strings.size() + 1);
  for (std::string& each : strings) all.push_back(each.data());
  all.push_back(nullptr);
  return all;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::vector<std::string> result;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string entry = *each;
    if (!changes.contains(entry.substr(0, entry.find('=')))) result.push_back(entry);
  }
  for (const auto& [name, value] : changes) {
    if (!value.empty()) result.push_back(name + "=" + value);
  }
  return result;
}

std::array<int, 2> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) fail("pipe2");
  return ends;
}

}  // namespace

role::role(const char* name, role_function run) {
  if (!roles().emplace(name, run).second) throw std::logic_error(std::string("two roles are called ") + name);
}

int run_role(const std::string& name, const std::vector<std::string>& arguments) noexcept {
  try {
    const auto found = roles().find(name);
    if (found == roles().end()) throw std::invalid_argument("no role is called " + name);
    return found->second(arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "role %s: %s\n", name.c_str(), e.what());
    return 1;
  }
}

child_process::child_process(const child_options& options) {
  std::signal(SIGPIPE, SIG_IGN);
  const bool self = options.program.empty();
  std::vector<std::string> arguments{self ? "test" : options.program};
  if (self) arguments.insert(arguments.end(), {"--role", options.role});
  arguments.insert(arguments.end(), options.arguments.begin(), options.arguments.end());
  std::vector<std::string> environment = environment_with(options.environment);

  const auto to_child = make_pipe();
  const auto from_child = make_pipe();
  posix_spawn_file_actions_t actions{};
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  const int problem = ::posix_spawn(&pid_, self ? "/proc/self/exe" : options.program.c_str(), &actions, nullptr,
                                    pointers(arguments).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(to_child[0]);
  ::close(from_child[1]);
  input_ = to_child[1];
  output_ = from_child[0];
  if (problem != 0) {
    pid_ = -1;
    ::close(input_);
    ::close(output_);
    fail("posix_spawn", problem);
  }
}

child_process::~child_process() {
  if (input_ >= 0) ::close(input_);
  if (output_ >= 0) ::close(output_);
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

void child_process::kill(int signal) const {
  if (::kill(pid_, signal) != 0) fail("kill");
}

void child_process::stop() const {
  kill(SIGSTOP);
  int status = 0;
  while (::waitpid(pid_, &status, WUNTRACED) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  if (!WIFSTOPPED(status)) throw std::runtime_error("a child process was to be stopped, and had ended");
}

int child_process::wait() {
  const watchdog bound("the end of a child process");
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string child_process::read_line() {
  const watchdog bound("a line of a child process");
  for (;;) {
    if (const std::size_t end = buffered_.find('\n'); end != std::string::npos) {
      std::string line = buffered_.substr(0, end);
      buffered_.erase(0, end + 1);
      return line;
    }
    std::array<char, 512> bytes{};
    const ssize_t count = ::read(output_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read");
    if (count == 0) throw std::runtime_error("a child process ended its output without the line that was expected");
    buffered_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

void child_process::write_line(const std::string& line) const {
  const std::string text = line + "\n";
  std::size_t written = 0;
  while (written != text.size()) {
    const ssize_t count = ::write(input_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write");
    written += static_cast<std::size_t>(count);
  }
}

void tell_parent(const std::string& line) {
  // In one piece: handlers tell their parents at the same time.
  std::cout << line + '\n' << std::flush;
}

std::string ask_parent() {
  std::string line;
  if (!std::getline(std::cin, line)) throw std::runtime_error("the parent process is gone");
  return line;
}

namespace {

template <class Breaks>
void break_connections_if(Breaks breaks) {
  for (int descriptor = 3; descriptor != 1024; ++descriptor) {
    sockaddr_storage far{};
    socklen_t size = sizeof far;
    if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&far), &size) == 0 && breaks(far.ss_family))
      ::shutdown(descriptor, SHUT_RDWR);
  }
}

}  // namespace

void break_connections() {
  break_connections_if([](sa_family_t) { return true; });
}

void break_tcp_connections() {
  break_connections_if([](sa_family_t family) { return family == AF_INET || family == AF_INET6; });
}

}  // namespace ferry_test

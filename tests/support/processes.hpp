#pragma once

// Real processes for tests: the test binary runs itself again in a role.
//
//   static const ferry_test::role server("server", [](const std::vector<std::string>& arguments) { ...; return 0; });
//   TEST_CASE("...") {
//     ferry_test::child_process child({.role = "server", .arguments = {"tcp://..."}});
//     CHECK(child.wait() == 0);
//   }

#include <csignal>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <sys/types.h>

namespace ferry_test {

/// What a child does. Its result is the exit status; what it throws goes to stderr and makes the exit status 1.
/// doctest's checks do not work in a role.
using role_function = int (*)(const std::vector<std::string>& arguments);

/// Registers a role; an object with static storage duration. Names are unique in a test binary.
class role {
 public:
  role(const char* name, role_function run);
};

/// For main().
int run_role(const std::string& name, const std::vector<std::string>& arguments) noexcept;

struct child_options {
  std::string role = {};
  std::vector<std::string> arguments = {};
  /// Added to the environment; an empty value removes the variable.
  std::map<std::string, std::string> environment = {};
  /// Another program than this test binary; it gets only `arguments`.
  std::string program = {};
};

/// A running child; killed and reaped if it is still there at the end. Its standard input and output are pipes to here,
/// its standard error is ours. Not thread-safe.
class child_process {
 public:
  explicit child_process(const child_options& options);
  child_process(child_process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        input_(std::exchange(other.input_, -1)),
        output_(std::exchange(other.output_, -1)),
        buffered_(std::move(other.buffered_)) {}
  child_process(const child_process&) = delete;
  child_process& operator=(child_process&&) = delete;
  ~child_process();

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void kill(int signal = SIGKILL) const;
  /// Sends SIGSTOP, and returns once it has stopped; SIGCONT lets it go on. Throws std::runtime_error if it has ended.
  void stop() const;
  /// Waits for its end: the exit status, or 128 plus the signal that killed it. Bounded by a watchdog.
  int wait();
  /// The next line that it prints, without the line break; blocks, bounded by a watchdog. Throws std::runtime_error if
  /// it prints none.
  std::string read_line();
  /// Writes a line to its standard input.
  void write_line(const std::string& line) const;

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string buffered_;
};

/// Breaks every connection of this process that has another end, unix sockets included.
void break_connections();
/// Those of TCP alone, so not those between the processes of a test.
void break_tcp_connections();

/// For roles: prints a line at once, reads one.
void tell_parent(const std::string& line);
std::string ask_parent();

}  // namespace ferry_test

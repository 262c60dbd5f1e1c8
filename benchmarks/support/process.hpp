#pragma once

// Helper processes: this program again, in another role.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sys/types.h>

namespace ferry_bench {

/// A connected socket or similar; closes it.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int value) noexcept : value_(value) {}
  descriptor(descriptor&& other) noexcept;
  descriptor& operator=(descriptor&& other) noexcept;
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor();
  [[nodiscard]] int get() const noexcept { return value_; }
  void reset() noexcept;

 private:
  int value_ = -1;
};

struct descriptor_pair {
  descriptor first;
  descriptor second;
};

/// Two connected blocking stream sockets of the kind "tcp" (loopback, without delay) or "unix".
descriptor_pair connected_sockets(const std::string& kind);

/// A blocking unix socket that listens at a path, and one that is connected to such a socket.
descriptor listen_at(const std::string& path, int backlog);
descriptor connect_to(const std::string& path);

/// Seconds of processor time that a process (0: this one) has used, to the nanosecond.
double processor_seconds(pid_t process);
/// The memory that a process has in use now, in KiB.
double resident_kib(pid_t process);
/// What this process has allocated and not freed, in KiB, where glibc tells; else as resident_kib(). Exact also where memory that was
/// freed is used again.
double allocated_kib();

/// A TCP port of 127.0.0.1 that was free a moment ago.
std::uint16_t free_port();

/// Write or read exactly so much. read_all returns false at the end of the stream; errors throw std::system_error.
void write_all(int to, const void* bytes, std::size_t size);
bool read_all(int from, void* bytes, std::size_t size);

/// Roles that main() can be started in: each gets its arguments and its descriptors.
using role = std::function<int(const std::vector<std::string>& arguments)>;
inline constexpr int control_descriptor = 3;  ///< in a role: a socket to the parent; its end means "stop"
inline constexpr int data_descriptor = 4;     ///< in a role: the socket given to it, if any

/// If this process was started in a role, runs it and exits.
void run_role(int argc, char** argv, const std::map<std::string, role>& roles);

/// A child in a role. It dies when the thread that started it does; the destructor requests its end and waits.
class child_process {
 public:
  child_process() = default;
  child_process(const std::string& role, const std::vector<std::string>& arguments, const descriptor* data = nullptr);
  child_process(child_process&&) noexcept;
  child_process& operator=(child_process&&) noexcept;
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  ~child_process();

  [[nodiscard]] pid_t id() const noexcept { return id_; }
  [[nodiscard]] int control() const noexcept { return control_.get(); }
  /// Sends a signal. After SIGKILL or SIGSTOP a clean exit is not required: the destructor kills it.
  void signal(int number) noexcept;
  /// Closes the control socket, at which roles end; does not wait.
  void ask_to_stop() noexcept { control_.reset(); }
  /// Requests its end, and waits. Throws if it did not exit cleanly.
  void stop();

 private:
  pid_t id_ = -1;
  bool doomed_ = false;
  descriptor control_;
};

}  // namespace ferry_bench

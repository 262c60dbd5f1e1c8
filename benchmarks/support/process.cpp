#include "process.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ferry_bench {
namespace {

constexpr const char* role_option = "--role";

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

descriptor_pair unix_sockets() {
  std::array<int, 2> both{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both.data()) != 0) fail("socketpair");
  return {descriptor(both[0]), descriptor(both[1])};
}

sockaddr_un unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw std::length_error("the path of a socket is too long: " + path);
  std::copy(path.begin(), path.end(), address.sun_path);
  return address;
}

descriptor unix_socket() {
  descriptor made(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (made.get() < 0) fail("socket");
  return made;
}

// A listening socket on a free port of 127.0.0.1, and its address.
descriptor listen_anywhere(sockaddr_in& address) {
  descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const at = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), at, size) != 0 || ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), at, &size) != 0) {
    fail("listening on 127.0.0.1");
  }
  return listener;
}

descriptor_pair tcp_sockets() {
  sockaddr_in address{};
  const descriptor listener = listen_anywhere(address);
  descriptor_pair result{descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  if (::connect(result.first.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fail("connecting to 127.0.0.1");
  }
  result.second = descriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const int on = 1;
  for (const int one : {result.first.get(), result.second.get()}) {
    if (::setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail("TCP_NODELAY");
  }
  return result;
}

// Between fork and exec: only what is allowed in the child of a process with threads.
[[noreturn]] void become(const std::vector<char*>& arguments, int control, int data, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // Both are first moved out of the way of their target numbers.
  const int high_control = ::fcntl(control, F_DUPFD, 16);
  const int high_data = data >= 0 ? ::fcntl(data, F_DUPFD, 16) : -1;
  ::dup2(high_control, control_descriptor);
  ::close(high_control);
  if (high_data >= 0) {
    ::dup2(high_data, data_descriptor);
    ::close(high_data);
  }
  ::execv("/proc/self/exe", arguments.data());
  ::_exit(127);
}

}  // namespace

descriptor::descriptor(descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
descriptor& descriptor::operator=(descriptor&& other) noexcept {
  std::swap(value_, other.value_);
  return *this;
}
descriptor::~descriptor() { reset(); }
void descriptor::reset() noexcept {
  if (value_ >= 0) ::close(std::exchange(value_, -1));
}

descriptor listen_at(const std::string& path, int backlog) {
  descriptor made = unix_socket();
  const sockaddr_un own = unix_address(path);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0) fail("bind");
  if (::listen(made.get(), backlog) != 0) fail("listen");
  return made;
}

descriptor connect_to(const std::string& path) {
  descriptor made = unix_socket();
  const sockaddr_un there = unix_address(path);
  if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there) != 0) fail("connect");
  return made;
}

double processor_seconds(pid_t process) {
  clockid_t which{};
  if (const int reason = ::clock_getcpuclockid(process, &which); reason != 0) {
    throw std::system_error(reason, std::generic_category(), "clock_getcpuclockid");
  }
  timespec now{};
  if (::clock_gettime(which, &now) != 0) fail("clock_gettime");
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double resident_kib(pid_t process) {
  std::ifstream status("/proc/" + (process == 0 ? "self" : std::to_string(process)) + "/status");
  for (std::string word; status >> word;) {
    double kib = 0;
    if (word == "VmRSS:" && status >> kib) return kib;
  }
  throw std::runtime_error("the memory of a process cannot be read");
}

double allocated_kib() {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const struct mallinfo2 now = ::mallinfo2();
  return static_cast<double>(now.uordblks + now.hblkhd) / 1024;
#else
  return resident_kib(0);
#endif
}

descriptor_pair connected_sockets(const std::string& kind) { return kind == "tcp" ? tcp_sockets() : unix_sockets(); }

std::uint16_t free_port() {
  sockaddr_in address{};
  const descriptor listener = listen_anywhere(address);
  return ntohs(address.sin_port);
}

void write_all(int to, const void* bytes, std::size_t size) {
  const auto* at = static_cast<const std::byte*>(bytes);
  while (size != 0) {
    const ssize_t count = ::send(to, at, size, MSG_NOSIGNAL);
    if (count < 0 && errno != EINTR) fail("send");
    if (count > 0) {
      at += count;
      size -= static_cast<std::size_t>(count);
    }
  }
}

bool read_all(int from, void* bytes, std::size_t size) {
  auto* at = static_cast<std::byte*>(bytes);
  while (size != 0) {
    const ssize_t count = ::recv(from, at, size, 0);
    if (count == 0) return false;
    if (count < 0 && errno != EINTR) fail("recv");
    if (count > 0) {
      at += count;
      size -= static_cast<std::size_t>(count);
    }
  }
  return true;
}

void run_role(int argc, char** argv, const std::map<std::string, role>& roles) {
  if (argc < 3 || std::string(argv[1]) != role_option) return;
  int status = 1;
  try {
    status = roles.at(argv[2])(std::vector<std::string>(argv + 3, argv + argc));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[2], e.what());
  }
  std::exit(status);  // NOLINT(concurrency-mt-unsafe): the role has ended
}

child_process::child_process(const std::string& role, const std::vector<std::string>& arguments,
                             const descriptor* data) {
  std::vector<std::string> words{"benchmark", role_option, role};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  descriptor_pair control = unix_sockets();
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ < 0) fail("fork");
  if (id_ == 0) become(pointers, control.second.get(), data ? data->get() : -1, parent);
  control_ = std::move(control.first);
}

child_process::child_process(child_process&& other) noexcept
    : id_(std::exchange(other.id_, -1)), doomed_(other.doomed_), control_(std::move(other.control_)) {}

child_process& child_process::operator=(child_process&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(doomed_, other.doomed_);
  std::swap(control_, other.control_);
  return *this;
}

child_process::~child_process() {
  try {
    stop();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "benchmark: %s\n", e.what());
  }
}

void child_process::signal(int number) noexcept {
  doomed_ = doomed_ || number == SIGKILL || number == SIGSTOP;
  ::kill(id_, number);
}

void child_process::stop() {
  if (id_ < 0) return;
  control_.reset();
  if (doomed_) ::kill(id_, SIGKILL);
  const pid_t id = std::exchange(id_, -1);
  int status = 0;
  while (::waitpid(id, &status, 0) < 0) {
    if (errno != EINTR) fail("waitpid");
  }
  if (doomed_) return;
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error("a helper process failed (wait status " + std::to_string(status) + ")");
  }
}

}  // namespace ferry_bench

#include "ports.hpp"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace ferry_test {
namespace {

// Above those that ferry derives from the number of a job.
constexpr int first = 30000;
constexpr int end = 32768;

// A claim is an abstract unix socket of the port's name, bound until this process ends.
bool claim(int port) {
  const std::string name = "ferry-test-port-" + std::to_string(port);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int socket = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (socket < 0) throw std::system_error(errno, std::generic_category(), "socket");
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0) return true;
  ::close(socket);
  return false;
}

bool nobody_listens(int port) {
  const int socket = ::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool six = socket >= 0;
  const int tried = six ? socket : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (tried < 0) throw std::system_error(errno, std::generic_category(), "socket");
  const int on = 1;
  const int off = 0;
  ::setsockopt(tried, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in6 any6{};
  sockaddr_in any4{};
  bool bound = false;
  if (six) {
    ::setsockopt(tried, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(tried, reinterpret_cast<const sockaddr*>(&any6), sizeof any6) == 0;
  } else {
    any4.sin_family = AF_INET;
    any4.sin_port = htons(static_cast<std::uint16_t>(port));
    bound = ::bind(tried, reinterpret_cast<const sockaddr*>(&any4), sizeof any4) == 0;
  }
  bound = bound && ::listen(tried, 1) == 0;
  ::close(tried);
  return bound;
}

}  // namespace

std::uint16_t free_port(int count) {
  static std::mutex mutex;
  static int next = first + (static_cast<int>(::getpid()) * 31) % (end - first);
  const std::lock_guard lock(mutex);
  int run = 0;
  for (int tried = 0; tried != end - first + count; ++tried) {
    if (next >= end) {
      next = first;
      run = 0;
    }
    const int port = next++;
    run = claim(port) && nobody_listens(port) ? run + 1 : 0;
    if (run == count) return static_cast<std::uint16_t>(port - count + 1);
  }
  throw std::runtime_error("no free ports between " + std::to_string(first) + " and " + std::to_string(end));
}

}  // namespace ferry_test

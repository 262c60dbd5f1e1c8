#include "endpoint.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

namespace ferry_run {
namespace {

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

const sockaddr* raw(const socket_address& address) { return reinterpret_cast<const sockaddr*>(&address.bytes); }

// Closes, and keeps errno.
int give_up(int descriptor) {
  const int failure = errno;
  close(descriptor);
  errno = failure;
  return -1;
}

std::uint16_t port_of(int descriptor) {
  sockaddr_in6 bound{};
  socklen_t length = sizeof bound;
  // The port has the same offset for both families.
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &length) != 0) return 0;
  return ntohs(bound.sin6_port);
}

// A socket bound to `port` of all addresses of both families, or of IPv4 where there is no IPv6.
int bound_to_all(std::uint16_t port) {
  const int on = 1;
  const int off = 0;
  const int six = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (six >= 0) {
    sockaddr_in6 any{};
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(port);
    if (port != 0) setsockopt(six, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0 &&
        bind(six, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0)
      return six;
    give_up(six);
    if (errno == EADDRINUSE) return -1;
  }
  const int four = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (four < 0) return -1;
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_port = htons(port);
  if (port != 0) setsockopt(four, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return bind(four, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0 ? four : give_up(four);
}

// The other machine may vanish silently: the kernel probes every few seconds.
void keep_alive(int descriptor) {
  const int on = 1;
  const int idle = 5;
  const int count = 4;
  const unsigned unanswered = 25000;
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
  setsockopt(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered, sizeof unanswered);
}

}  // namespace

std::string endpoint::text() const {
  const bool six = host.find(':') != std::string::npos;
  return (six ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

std::vector<socket_address> resolve(const endpoint& where, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  std::vector<socket_address> result;
  if (failure != 0) {
    problem = failure == EAI_SYSTEM ? std::system_category().message(errno) : gai_strerror(failure);
    return result;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    socket_address address;
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    result.push_back(address);
  }
  freeaddrinfo(found);
  return result;
}

bool is_own(const std::vector<socket_address>& addresses) {
  // An address that can be bound belongs to this machine.
  return std::any_of(addresses.begin(), addresses.end(), [](socket_address address) {
    const int descriptor = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (descriptor < 0) return false;
    reinterpret_cast<sockaddr_in6&>(address.bytes).sin6_port = 0;  // same offset for both families
    const bool own = bind(descriptor, raw(address), address.size) == 0;
    close(descriptor);
    return own;
  });
}

int listen_at(const endpoint& where) {
  int descriptor = -1;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* literal = nullptr;
  if (getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &literal) == 0) {
    const int on = 1;
    descriptor = socket(literal->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor >= 0) setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (descriptor >= 0 && bind(descriptor, literal->ai_addr, literal->ai_addrlen) != 0)
      descriptor = give_up(descriptor);
    freeaddrinfo(literal);
  } else {
    descriptor = bound_to_all(where.port);
  }
  if (descriptor < 0) return -1;
  return listen(descriptor, SOMAXCONN) == 0 ? descriptor : give_up(descriptor);
}

int accept_from(int listener) {
  const int descriptor = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor >= 0) keep_alive(descriptor);
  return descriptor;
}

int connect_to(const std::vector<socket_address>& addresses, std::chrono::milliseconds limit, std::string& problem) {
  for (const socket_address& address : addresses) {
    const int descriptor = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) continue;
    int failure = connect(descriptor, raw(address), address.size) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) {
      pollfd wait{descriptor, POLLOUT, 0};
      socklen_t length = sizeof failure;
      if (poll(&wait, 1, static_cast<int>(limit.count())) <= 0) {
        failure = ETIMEDOUT;
      } else if (getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &failure, &length) != 0) {
        failure = errno;
      }
    }
    // Without a listener, a connection on this machine can be assigned that very port and connect to itself.
    sockaddr_storage there{};
    socklen_t length = sizeof there;
    if (failure == 0 && getpeername(descriptor, reinterpret_cast<sockaddr*>(&there), &length) == 0 &&
        is_own({address}) && port_of(descriptor) == ntohs(reinterpret_cast<const sockaddr_in6&>(there).sin6_port))
      failure = ECONNREFUSED;
    if (failure == 0) {
      keep_alive(descriptor);
      return descriptor;
    }
    problem = std::generic_category().message(failure);
    close(descriptor);
  }
  return -1;
}

std::uint16_t free_port() {
  const int descriptor = bound_to_all(0);
  if (descriptor < 0) fail("cannot pick a free port");
  const std::uint16_t port = port_of(descriptor);
  close(descriptor);
  return port;
}

}  // namespace ferry_run

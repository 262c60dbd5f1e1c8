#include "socket_address.hpp"

#include <ferry/base/error.hpp>
#include <ferry/transport/address.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../base/net/socket_options.hpp"

namespace ferry::inline v0::detail {
namespace {

std::vector<socket_address> look_up(const std::string& host, std::uint16_t port, int flags, int& status) {
  status = EAI_NONAME;
  if (host.find('\0') != host.npos) return {};  // would end the name for the resolver
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  std::vector<socket_address> result;
  if (status != 0) return result;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  for (const addrinfo* at = list; at; at = at->ai_next) {
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
      result.push_back(socket_address::copy(at->ai_addr, at->ai_addrlen));
    }
  }
  return result;
}

}  // namespace

socket_address socket_address::copy(const void* address, socklen_t size) {
  socket_address result;
  result.size = std::min<socklen_t>(size, sizeof result.storage);
  std::memcpy(&result.storage, address, result.size);
  return result;
}

std::optional<socket_address> socket_address::from_literal(const std::string& host, std::uint16_t port) {
  int status = 0;
  auto found = look_up(host, port, AI_NUMERICHOST | AI_NUMERICSERV, status);
  if (found.empty()) return std::nullopt;
  return found.front();
}

socket_address socket_address::from_unix(std::string_view name) {
  sockaddr_un result{};
  result.sun_family = AF_UNIX;
  std::memcpy(result.sun_path, name.data(), std::min(name.size(), sizeof result.sun_path - 1));
  std::size_t size = offsetof(sockaddr_un, sun_path) + name.size();
  if (name.front() == '@') {
    result.sun_path[0] = '\0';  // the kernel compares exactly as many bytes of an abstract name as the length says
  } else {
    ++size;
  }
  return copy(&result, static_cast<socklen_t>(size));
}

std::vector<socket_address> socket_address::resolve(const std::string& host, std::uint16_t port) {
  int status = 0;
  auto found = look_up(host, port, AI_NUMERICSERV, status);
  if (found.empty()) {
    throw_error(errc::bad_address, fmt::format("cannot resolve the host '{}': {}", host,
                                               status == 0 ? "it has no address" : ::gai_strerror(status)));
  }
  return found;
}

socket_address socket_address::local_end(int descriptor) {
  socket_address result;
  result.size = sizeof result.storage;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&result.storage), &result.size) != 0) result.size = 0;
  return result;
}

socket_address socket_address::remote_end(int descriptor) {
  socket_address result;
  result.size = sizeof result.storage;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&result.storage), &result.size) != 0) result.size = 0;
  return result;
}

std::string socket_address::host() const {
  char text[NI_MAXHOST];
  const int status = ::getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (status != 0)
    throw_error(errc::bad_address, fmt::format("a socket address has no text: {}", ::gai_strerror(status)));
  return text;
}

std::uint16_t socket_address::port() const noexcept {
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  if (family() == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(storage).sin6_port);
  return 0;
}

void socket_address::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
}

bool socket_address::is_link_local() const noexcept {
  if (family() == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 16U) == 0xa9fe;  // 169.254/16
  }
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr);
}

std::string socket_address::text() const {
  if (family() == AF_UNIX) {
    const auto& un = reinterpret_cast<const sockaddr_un&>(storage);
    const std::size_t count = size - std::min<std::size_t>(size, offsetof(sockaddr_un, sun_path));
    if (count == 0) return "unnamed";
    if (un.sun_path[0] == '\0') return std::string("@").append(un.sun_path + 1, count - 1);
    return {un.sun_path, ::strnlen(un.sun_path, count)};
  }
  if (size == 0) return "unknown";
  return host_port{host(), port()}.to_string();
}

bool socket_address::same_as(const socket_address& other) const noexcept {
  if (family() != other.family() || port() != other.port()) return false;
  if (family() == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(other.storage).sin_addr.s_addr;
  }
  if (family() == AF_INET6) {
    const auto& a = reinterpret_cast<const sockaddr_in6&>(storage);
    const auto& b = reinterpret_cast<const sockaddr_in6&>(other.storage);
    return a.sin6_scope_id == b.sin6_scope_id && std::memcmp(&a.sin6_addr, &b.sin6_addr, sizeof a.sin6_addr) == 0;
  }
  return size == other.size && std::memcmp(&storage, &other.storage, size) == 0;
}

descriptor::~descriptor() {
  if (value_ >= 0) ::close(value_);
}

descriptor open_stream_socket(int family) {
  const int opened = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (opened < 0) throw_errno(errc::system_failure, "cannot open a socket", errno);
  return descriptor(opened);
}

void tune_connection(int descriptor, int family) noexcept {
  if (family == AF_UNIX) {
    // A tensor's bytes are passed in few large pieces instead of one wake-up per 200 KiB.
    constexpr int buffer = 4 << 20;
    set_socket_option(descriptor, SOL_SOCKET, SO_SNDBUF, buffer);
    return;
  }
  set_tcp_defaults(descriptor);
}

descriptor listen_on(const socket_address& where, int& system_error) {
  auto socket = open_stream_socket(where.family());
  // Allows listening at once on a port whose previous connections are still in TIME_WAIT, but not on one with a
  // listener.
  if (where.family() != AF_UNIX) set_socket_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (where.family() == AF_INET6) {
    const bool any = IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(where.storage).sin6_addr);
    set_socket_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, any ? 0 : 1);
  }
  if (::bind(socket.get(), where.get(), where.size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0) {
    system_error = errno;
    return {};
  }
  system_error = 0;
  return socket;
}

}  // namespace ferry::inline v0::detail

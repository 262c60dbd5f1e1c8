#include "socket_address.hpp"

#include <ferry/base/error.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

namespace ferry::inline v0::detail {
namespace {

resolution look_up(const std::string& host, std::uint16_t port, int flags) {
  if (host.find('\0') != host.npos) return {{}, "it contains a null character"};  // which ends it for the resolver
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (status == EAI_SYSTEM) return {{}, std::generic_category().message(errno)};
  if (status != 0) return {{}, ::gai_strerror(status)};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(list, &::freeaddrinfo);
  resolution result;
  for (const addrinfo* at = list; at; at = at->ai_next) {
    if (at->ai_family == AF_INET || at->ai_family == AF_INET6) {
      result.addresses.push_back(socket_address::copy(at->ai_addr, at->ai_addrlen));
    }
  }
  if (result.addresses.empty()) result.problem = "it has no IP address";
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
  if (host.empty()) return std::nullopt;
  const resolution found = look_up(host, port, AI_NUMERICHOST);
  if (found.addresses.empty()) return std::nullopt;
  return found.addresses.front();
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

bool socket_address::is_loopback() const noexcept {
  if (family() == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in&>(storage).sin_addr.s_addr) >> 24U) == 127;
  if (family() != AF_INET6) return false;
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) != 0 || (IN6_IS_ADDR_V4MAPPED(&v6) != 0 && v6.s6_addr[12] == 127);
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
  return host_and_port(host(), port());
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

resolution resolve_host(const std::string& host, std::uint16_t port) { return look_up(host, port, 0); }

std::vector<socket_address> link_local_on_each_interface(const std::string& host, std::uint16_t port) {
  std::vector<socket_address> result;
  const auto scope = host.find('%');
  if (scope == host.npos || socket_address::from_literal(host, port)) return result;
  const auto plain = socket_address::from_literal(host.substr(0, scope), port);
  if (!plain || plain->family() != AF_INET6 || !plain->is_link_local()) return result;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return result;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || at->ifa_addr->sa_family != AF_INET6 || (at->ifa_flags & IFF_UP) == 0) continue;
    const auto own = socket_address::copy(at->ifa_addr, sizeof(sockaddr_in6));
    if (!own.is_link_local()) continue;
    socket_address there = *plain;
    reinterpret_cast<sockaddr_in6&>(there.storage).sin6_scope_id =
        reinterpret_cast<const sockaddr_in6&>(own.storage).sin6_scope_id;
    const bool known =
        std::any_of(result.begin(), result.end(), [&](const socket_address& each) { return each.same_as(there); });
    if (!known) result.push_back(there);
  }
  return result;
}

std::string host_and_port(std::string_view host, std::uint16_t port) {
  return host.find(':') == host.npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

}  // namespace ferry::inline v0::detail

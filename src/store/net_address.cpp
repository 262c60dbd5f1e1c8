#include "net_address.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <fmt/format.h>

namespace ferry::inline v0::detail {
namespace {

resolution look_up(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int problem = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  resolution result;
  if (problem != 0) {
    result.problem = fmt::format("the name '{}' cannot be resolved: {}", host,
                                 problem == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(problem));
    return result;
  }
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    net_address address;
    std::memcpy(&address.bytes, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    result.addresses.push_back(address);
  }
  if (result.addresses.empty()) result.problem = fmt::format("the name '{}' has no IP address", host);
  return result;
}

}  // namespace

std::string net_address::ip() const {
  std::array<char, NI_MAXHOST> text{};
  if (::getnameinfo(raw(), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

bool net_address::is_loopback() const noexcept {
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&bytes);
    return (ntohl(v4->sin_addr.s_addr) >> 24U) == 127;
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&bytes);
  return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) != 0 ||
         (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) != 0 && v6->sin6_addr.s6_addr[12] == 127);
}

std::uint16_t net_address::port() const noexcept {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port
                                   : reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port);
}

void net_address::set_port(std::uint16_t port) noexcept {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&bytes)->sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port = htons(port);
  }
}

std::optional<net_address> parse_address(const std::string& host, std::uint16_t port) {
  if (host.empty()) return std::nullopt;
  const resolution found = look_up(host, port, AI_NUMERICHOST);
  if (found.addresses.empty()) return std::nullopt;
  return found.addresses.front();
}

bool spells_loopback(const std::string& host) {
  if (host == "localhost") return true;
  const auto address = parse_address(host, 0);
  return address && address->is_loopback();
}

resolution resolve_host(const std::string& host, std::uint16_t port, const interrupt& stop, deadline until) {
  if (const auto literal = parse_address(host, port)) return {{*literal}, {}};
  // getaddrinfo has no deadline, and may take half a minute if a name server does not answer.
  struct shared {
    std::mutex mutex;
    resolution result;
    interrupt done;
  };
  const auto task = std::make_shared<shared>();
  std::thread([task, host, port] {
    resolution result = look_up(host, port, 0);
    {
      const std::lock_guard lock(task->mutex);
      task->result = std::move(result);
    }
    task->done.raise();
  }).detach();
  if (stop.wait(task->done.descriptor(), POLLIN, until) != interrupt::outcome::ready) {
    return {{}, fmt::format("the name '{}' was not resolved in time", host)};
  }
  const std::lock_guard lock(task->mutex);
  return std::move(task->result);
}

std::optional<net_address> routed_address(int family) {
  // Connecting a datagram socket sends nothing; it makes the kernel choose the source address. The targets are
  // addresses reserved for documentation, so they are routed like any remote host.
  const auto target = parse_address(family == AF_INET ? "192.0.2.1" : "2001:db8::1", 9);
  const unique_fd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!target || !socket || ::connect(socket.get(), target->raw(), target->size) != 0) return std::nullopt;
  net_address local;
  local.size = sizeof(local.bytes);
  if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&local.bytes), &local.size) != 0) return std::nullopt;
  if (local.is_loopback()) return std::nullopt;
  return local;
}

std::string host_and_port(const std::string& host, std::uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

}  // namespace ferry::inline v0::detail

#include <ferry/base/error.hpp>
#include <ferry/transport/address.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/un.h>

#include "../../base/net/socket_address.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

constexpr std::size_t longest_host = 253;  // of a DNS name
constexpr std::size_t longest_unix = sizeof(sockaddr_un::sun_path) - 1;

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  constexpr std::size_t shown = 200;  // the text may come from a peer
  throw_error(errc::bad_address, fmt::format("'{}{}' is not an address: {}", text.substr(0, shown),
                                             text.size() > shown ? "..." : "", why));
}

bool all_of(std::string_view text, std::string_view extra) {
  return std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || extra.find(c) != extra.npos;
  });
}

// A null character would end the text for the system, but not for std::string.
bool read_literal(int family, std::string_view text, void* to) {
  return text.find('\0') == text.npos && ::inet_pton(family, std::string(text).c_str(), to) == 1;
}

host_port split(std::string_view whole, std::string_view text) {
  host_port result;
  std::string_view port;
  if (!text.empty() && text.front() == '[') {
    const auto end = text.find(']');
    if (end == text.npos) refuse(whole, "the bracket is not closed");
    const auto host = text.substr(1, end - 1);
    if (!is_ipv6_literal(host)) refuse(whole, "only an IPv6 address, like [::1] or [fe80::1%eth0], may be in brackets");
    if (end + 1 >= text.size() || text[end + 1] != ':') refuse(whole, "a ':' and a port must follow the bracket");
    result.host = host;
    port = text.substr(end + 2);
  } else {
    const auto colon = text.rfind(':');
    if (colon == text.npos) refuse(whole, "the port is missing; write host:port");
    const auto host = text.substr(0, colon);
    if (host.find(':') != host.npos) refuse(whole, "an IPv6 address must be in brackets: [::1]:4711");
    if (host.empty()) refuse(whole, "the host is missing; write host:port");
    if (host.size() > longest_host) refuse(whole, "the host name is longer than 253 characters");
    if (!all_of(host, "-._")) refuse(whole, "the host contains characters that are not valid in a host name");
    result.host = host;
    port = text.substr(colon + 1);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), result.port);
  if (error != std::errc() || end != port.data() + port.size() || result.port == 0) {
    refuse(whole, "the port must be a number from 1 to 65535");
  }
  return result;
}

// One interface address, as getifaddrs gives it.
struct local_address {
  std::string host;
  bool ipv6;
  bool loopback;
  bool link_local;
};

std::vector<local_address> local_addresses(const std::string* interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno(errc::system_failure, "cannot list the network interfaces", errno);
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<local_address> result;
  for (const ifaddrs* at = list; at; at = at->ifa_next) {
    if (!at->ifa_addr || (at->ifa_flags & IFF_UP) == 0) continue;
    if (interface && *interface != at->ifa_name) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const auto here = detail::socket_address::copy(
        at->ifa_addr, family == AF_INET ? socklen_t{sizeof(sockaddr_in)} : socklen_t{sizeof(sockaddr_in6)});
    local_address found{here.host(), family == AF_INET6, false, here.is_link_local()};
    found.loopback = is_loopback(found.host);
    result.push_back(std::move(found));
  }
  std::stable_sort(result.begin(), result.end(), [](const local_address& a, const local_address& b) {
    return std::pair(a.link_local, a.ipv6) < std::pair(b.link_local, b.ipv6);
  });
  return result;
}

}  // namespace
}  // namespace detail

host_port host_port::parse(std::string_view text) { return detail::split(text, text); }

std::string host_port::to_string() const { return detail::host_and_port(host, port); }

address address::parse(std::string_view text) {
  if (has_scheme(text, "tcp")) {
    auto rest = text.substr(4);
    if (rest.substr(0, 2) != "//") detail::refuse(text, "write tcp://host:port");
    auto parts = detail::split(text, rest.substr(2));
    return {"tcp", std::move(parts.host), parts.port};
  }
  const bool shared = has_scheme(text, "shm");
  if (shared || has_scheme(text, "unix")) {
    const std::string_view scheme = shared ? "shm" : "unix";
    const auto name = text.substr(scheme.size() + 1);
    if (name.size() < 2 || (name.front() != '@' && name.front() != '/')) {
      detail::refuse(text, fmt::format("write {0}:@abstract-name or {0}:/absolute/path", scheme));
    }
    if (name.size() > detail::longest_unix)
      detail::refuse(text, fmt::format("a unix socket's name has at most {} bytes", detail::longest_unix));
    if (name.find('\0') != name.npos) detail::refuse(text, "it contains a null character");
    return {std::string(scheme), std::string(name), 0};
  }
  if (has_scheme(text, "inproc")) {
    const auto token = text.substr(7);
    if (token.empty() || !detail::all_of(token, "-._")) detail::refuse(text, "write inproc:token");
    return {"inproc", std::string(token), 0};
  }
  detail::refuse(text, "it must begin with tcp://, unix:, shm: or inproc:");
}

std::string address::to_string() const {
  if (scheme == "tcp") return "tcp://" + host_port{host, port}.to_string();
  return scheme + ":" + host;
}

bool has_scheme(std::string_view text, std::string_view scheme) noexcept {
  return text.size() > scheme.size() && text.substr(0, scheme.size()) == scheme && text[scheme.size()] == ':';
}

bool is_ipv6_literal(std::string_view host) {
  const auto percent = host.find('%');
  if (percent != host.npos) {
    const auto scope = host.substr(percent + 1);
    if (scope.empty() || scope.size() >= IF_NAMESIZE || !detail::all_of(scope, "-._@")) return false;
  }
  in6_addr ignored;
  return detail::read_literal(AF_INET6, host.substr(0, percent), &ignored);
}

bool is_loopback(std::string_view host) {
  if (host == "localhost") return true;
  const std::string_view literal = host.substr(0, host.find('%'));
  in_addr v4;
  if (detail::read_literal(AF_INET, literal, &v4)) return (ntohl(v4.s_addr) >> 24U) == 127;
  in6_addr v6;
  if (!detail::read_literal(AF_INET6, literal, &v6)) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

bool is_unspecified(std::string_view host) {
  in_addr v4;
  if (detail::read_literal(AF_INET, host, &v4)) return v4.s_addr == INADDR_ANY;
  in6_addr v6;
  return detail::read_literal(AF_INET6, host, &v6) && IN6_IS_ADDR_UNSPECIFIED(&v6);
}

std::vector<std::string> interface_addresses(const std::string& name) {
  std::vector<std::string> result;
  for (auto& found : detail::local_addresses(&name)) result.push_back(std::move(found.host));
  return result;
}

std::vector<std::string> routable_addresses() {
  std::vector<std::string> result;
  for (auto& found : detail::local_addresses(nullptr)) {
    if (!found.loopback && !found.link_local) result.push_back(std::move(found.host));
  }
  return result;
}

std::string choose_listen_host(std::string_view store_host, std::string_view local_address) {
  if (is_loopback(local_address) && !store_host.empty() && !is_loopback(store_host) && !is_unspecified(store_host)) {
    auto routable = routable_addresses();
    if (!routable.empty()) return std::move(routable.front());
  }
  return std::string(local_address);
}

}  // namespace ferry::inline v0

#include <ferry/base/error.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <net/if.h>

#include "socket_transport.hpp"
#include "stream_socket.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// `bind` as addresses, best first; ports are not set yet.
std::vector<socket_address> bind_addresses(const std::string& bind, const std::string& suggested_host) {
  std::string host = bind;
  if (host.empty()) host = suggested_host.empty() ? "127.0.0.1" : suggested_host;
  if (auto literal = socket_address::from_literal(host, 0)) return {*literal};
  std::vector<socket_address> result;
  if (host.size() < IF_NAMESIZE && ::if_nametoindex(host.c_str()) != 0) {
    for (const auto& found : interface_addresses(host)) {
      if (auto literal = socket_address::from_literal(found, 0)) result.push_back(*literal);
    }
    if (result.empty()) {
      throw_error(errc::bad_address,
                  fmt::format("the network interface '{}' to listen on has no address, or is down", host));
    }
    return result;
  }
  auto found = resolve_host(host, 0);
  if (found.addresses.empty()) {
    throw_error(errc::bad_address,
                bind.empty() ? fmt::format("cannot resolve the host '{}' to listen on: {}", host, found.problem)
                             : fmt::format("transport_options::bind is '{}', which is neither an address nor a network "
                                           "interface of this machine; as a host name: {}",
                                           bind, found.problem));
  }
  result = std::move(found.addresses);
  if (host == "localhost") return result;
  // Debian's /etc/hosts maps the machine's own name to 127.0.1.1, which other machines resolve to themselves.
  const auto loopback = [](const socket_address& found) { return is_loopback(found.host()); };
  std::stable_partition(result.begin(), result.end(), [&](const socket_address& found) { return !loopback(found); });
  if (loopback(result.front()) && !suggested_host.empty() && !is_loopback(suggested_host)) {
    throw_error(
        errc::bad_address,
        fmt::format("'{}' to listen on is {}, which other machines cannot reach; name a network interface or an "
                    "address, such as {}",
                    host, result.front().host(), suggested_host));
  }
  return result;
}

struct port_range {
  std::uint16_t first;
  std::uint16_t last;

  explicit port_range(const transport_options& options)
      : first(options.port), last(options.port_last == 0 ? options.port : options.port_last) {
    if (last < first || (first == 0 && last != 0)) {
      throw_error(errc::invalid_argument,
                  fmt::format("port {} and port_last {} are no range of ports", options.port, options.port_last));
    }
  }
  [[nodiscard]] bool contains(std::uint16_t port) const noexcept {
    return first == 0 || (first <= port && port <= last);
  }
  [[nodiscard]] std::string text() const {
    return first == last ? std::to_string(first) : fmt::format("{}-{}", first, last);
  }
};

std::string bracketed(const std::string& host) {
  return host.find(':') == host.npos ? host : fmt::format("[{}]", host);
}

unique_fd open_listener(std::vector<socket_address> candidates, const port_range& ports) {
  std::string reasons;
  bool in_use = false;
  for (auto& where : candidates) {
    int failure = 0;
    for (std::uint32_t port = ports.first; port <= ports.last; ++port) {
      where.set_port(static_cast<std::uint16_t>(port));
      auto socket = listen_on(where, failure);
      if (socket.get() >= 0) return socket;
      if (failure != EADDRINUSE) break;
    }
    in_use = in_use || failure == EADDRINUSE;
    reasons += fmt::format("{}{}:{}: {}", reasons.empty() ? "" : "; ", bracketed(where.host()), ports.text(),
                           std::generic_category().message(failure));
    if (failure != EADDRINUSE && failure != EADDRNOTAVAIL && failure != EAFNOSUPPORT) {
      throw_error(errc::system_failure, fmt::format("cannot listen on {}", reasons));
    }
  }
  if (in_use) {
    throw_error(
        errc::address_in_use,
        fmt::format("cannot listen on {}; set another `port`, a range by `port_last`, or 0 for any free one", reasons));
  }
  throw_error(errc::bad_address,
              fmt::format("cannot listen on {}; `bind` must be an address of this machine", reasons));
}

// The addresses to publish, given the listener's address.
std::vector<std::string> published(const socket_address& where, const std::string& suggested_host,
                                   const std::string& advertise) {
  const auto with_port = [&](const std::string& host) { return "tcp://" + host_port{host, where.port()}.to_string(); };
  if (!advertise.empty()) {
    // "host" or "host:port"; an IPv6 literal may omit the brackets if it has no port.
    const bool bare = advertise.front() == '[' ? advertise.back() == ']'
                                               : is_ipv6_literal(advertise) || advertise.find(':') == advertise.npos;
    auto host = advertise;
    if (bare && host.front() == '[') host = host.substr(1, host.size() - 2);
    try {
      host_port to = host_port::parse(bare ? host_port{host, where.port()}.to_string() : advertise);
      if (is_unspecified(to.host))
        throw_error(errc::bad_address, "it means every address of the machine that connects");
      return {"tcp://" + to.to_string()};
    } catch (const error& problem) {
      throw_error(errc::bad_address, fmt::format("transport_options::advertise is '{}', which other workers cannot "
                                                 "connect to (write a host, or host:port): {}",
                                                 advertise, problem.message()));
    }
  }
  if (!is_unspecified(where.host())) return {with_port(where.host())};
  std::vector<std::string> hosts = routable_addresses();
  if (where.family() == AF_INET) std::erase_if(hosts, is_ipv6_literal);
  // The address used to reach the store is known to work.
  if (!suggested_host.empty() && !is_loopback(suggested_host) && !is_unspecified(suggested_host)) {
    std::erase(hosts, suggested_host);
    hosts.insert(hosts.begin(), suggested_host);
  }
  if (hosts.empty()) hosts.emplace_back(where.family() == AF_INET ? "127.0.0.1" : "::1");
  std::vector<std::string> result;
  for (const auto& host : hosts) result.push_back(with_port(host));
  return result;
}

// A peer that reaches a worker may run any method it serves, so exposing one must be explicit.
void refuse_unauthenticated_listeners(const std::vector<socket_address>& candidates, const transport_options& options) {
  if (!options.secret.empty() || options.allow_unauthenticated) return;
  for (const auto& where : candidates) {
    if (is_loopback(where.host())) continue;
    throw_error(
        errc::authentication_required,
        fmt::format(
            "listening on {} would let any process that can reach this machine call the worker's methods; give all "
            "workers one secret (worker_config::secret, FERRY_SECRET or FERRY_SECRET_FILE), list what may be called "
            "(worker_config::serve or ferry::serve), or allow it explicitly (worker_config::allow_unauthenticated "
            "or FERRY_ALLOW_UNAUTHENTICATED=1); workers on one machine can use 127.0.0.1",
            where.host()));
  }
}

class tcp_transport final : public socket_transport {
 public:
  explicit tcp_transport(reactor& loop) : socket_transport(loop, transport_traits<tcp>::name, nullptr) {}

  std::vector<std::string> listen(const std::string& group, const std::string& target,
                                  const std::string& suggested_host, const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    const port_range ports(options);
    const auto candidates = bind_addresses(options.bind, suggested_host);
    // Checks `advertise` before any socket is opened; the port is irrelevant.
    auto somewhere = candidates.front();
    somewhere.set_port(1);
    (void)published(somewhere, suggested_host, options.advertise);
    refuse_unauthenticated_listeners(candidates, options);
    const auto suits = [&](const listener& open) {
      return ports.contains(open.where().port()) &&
             std::any_of(candidates.begin(), candidates.end(), [&](socket_address wanted) {
               wanted.set_port(open.where().port());
               return wanted.same_as(open.where());
             });
    };
    const auto used = use_listener(group, target, options, std::move(acceptor), suits,
                                   [&] { return open_listener(candidates, ports); });
    return published(used->where(), suggested_host, options.advertise);
  }
};

}  // namespace
}  // namespace detail

std::string transport_traits<tcp>::unusable() {
  for (const int family : {AF_INET, AF_INET6}) {
    if (detail::unique_fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)).get() >= 0) return {};
  }
  return "cannot open a socket: " + std::generic_category().message(errno);
}

std::shared_ptr<transport> transport_traits<tcp>::open(reactor& loop) {
  return detail::shared_transport<detail::tcp_transport>(loop);
}

}  // namespace ferry::inline v0

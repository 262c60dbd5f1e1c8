#include "host_lookup.hpp"

#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

#include "../base/unique_fd.hpp"

namespace ferry::inline v0::detail {

bool spells_loopback(const std::string& host) {
  if (host == "localhost") return true;
  const auto address = socket_address::from_literal(host, 0);
  return address && address->is_loopback();
}

resolution resolve_host(const std::string& host, std::uint16_t port, const interrupt& stop, deadline until) {
  if (const auto literal = socket_address::from_literal(host, port)) return {{*literal}, {}};
  // getaddrinfo has no deadline, and may take half a minute if a name server does not answer.
  struct shared {
    std::mutex mutex;
    resolution result;
    interrupt done;
  };
  const auto task = std::make_shared<shared>();
  std::thread([task, host, port] {
    resolution result = resolve_host(host, port);
    if (!result.problem.empty()) result.problem = fmt::format("cannot resolve the host '{}': {}", host, result.problem);
    {
      const std::lock_guard lock(task->mutex);
      task->result = std::move(result);
    }
    task->done.raise();
  }).detach();
  if (stop.wait(task->done.descriptor(), POLLIN, until) != interrupt::outcome::ready) {
    return {{}, fmt::format("cannot resolve the host '{}': no answer in time", host)};
  }
  const std::lock_guard lock(task->mutex);
  return std::move(task->result);
}

std::optional<socket_address> routed_address(int family) {
  // Connecting a datagram socket sends nothing; it makes the kernel choose the source address. The targets are
  // addresses reserved for documentation, so they are routed like any remote host.
  const auto target = socket_address::from_literal(family == AF_INET ? "192.0.2.1" : "2001:db8::1", 9);
  const unique_fd socket(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!target || !socket || ::connect(socket.get(), target->get(), target->size) != 0) return std::nullopt;
  const socket_address local = socket_address::local_end(socket.get());
  if (local.size == 0 || local.is_loopback()) return std::nullopt;
  return local;
}

}  // namespace ferry::inline v0::detail

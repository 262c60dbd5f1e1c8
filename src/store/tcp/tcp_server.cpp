#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include <ferry/base/error.hpp>
#include <ferry/store/tcp_store.hpp>

#include "../../base/authentication.hpp"
#include "../../base/net/socket_address.hpp"
#include "tcp_server_core.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// The servers of this process by address and port, so that a second group with the same address shares the first one's.
// Never destroyed: servers may end during static destruction.
struct server_table {
  std::mutex mutex;
  std::condition_variable gone;
  std::map<std::string, std::weak_ptr<tcp_store_server>> servers;
};
server_table& servers() {
  static server_table& table = *new server_table;
  return table;
}

// The address on which a server for `host` listens.
detail::socket_address address_for(const std::string& host, std::uint16_t port) {
  if (host.empty()) throw_error(errc::bad_address, fmt::format("the store needs a host to listen on (port {})", port));
  const auto literal = detail::socket_address::from_literal(host == "localhost" ? "127.0.0.1" : host, port);
  // A name may resolve to 127.0.1.1 here and to another address elsewhere.
  return literal ? *literal : *detail::socket_address::from_literal("::", port);
}

}  // namespace
}  // namespace detail

tcp_store_server::tcp_store_server(std::unique_ptr<detail::store_server_core> core) : core_(std::move(core)) {}
tcp_store_server::~tcp_store_server() = default;

std::shared_ptr<tcp_store_server> tcp_store_server::listen(const std::string& host, std::uint16_t port,
                                                           const tcp_store_limits& limits,
                                                           const tcp_store_access& access) {
  if (limits.max_value_bytes > std::size_t{1} << 30U) {
    throw_error(errc::invalid_argument,
                fmt::format("max_value_bytes of a tcp store is {}; it may be at most 1 GiB", limits.max_value_bytes));
  }
  for (const auto& [name, value] : {std::pair<std::string_view, std::size_t>("max_value_bytes", limits.max_value_bytes),
                                    {"max_total_bytes", limits.max_total_bytes},
                                    {"max_connections", limits.max_connections}}) {
    if (value == 0) throw_error(errc::invalid_argument, fmt::format("{} of a tcp store is 0", name));
  }
  for (const auto& [name, value] :
       {std::pair<std::string_view, std::chrono::milliseconds>("message_timeout", limits.message_timeout),
        {"handshake_timeout", limits.handshake_timeout}}) {
    if (value <= std::chrono::milliseconds::zero())
      throw_error(errc::invalid_argument, fmt::format("{} of a tcp store is {} ms", name, value.count()));
  }
  detail::check_secret_usable(access.secret);
  const detail::socket_address at = detail::address_for(host, port);
  if (!at.is_loopback() && access.secret.empty() && !access.allow_unauthenticated) {
    throw_error(
        errc::authentication_required,
        fmt::format("serving the store at {} would let any process that reaches this machine read and write it; give "
                    "all workers one secret (worker_config::secret, FERRY_SECRET or FERRY_SECRET_FILE), or allow "
                    "this explicitly (worker_config::allow_unauthenticated or FERRY_ALLOW_UNAUTHENTICATED=1); "
                    "workers on one machine can use 127.0.0.1",
                    detail::host_and_port(host, port)));
  }
  detail::server_table& table = detail::servers();
  // Before the lock: these may be the last owners, and a server's deleter takes the mutex.
  std::shared_ptr<tcp_store_server> server;
  std::shared_ptr<tcp_store_server> ended;
  std::unique_lock lock(table.mutex);
  for (const std::string key = detail::host_and_port(at.host(), port); port != 0;) {
    const auto found = table.servers.find(key);
    if (found == table.servers.end()) break;
    server = found->second.lock();
    if (server && !server->core_->accepts()) {  // an ended group's, whose last clients have yet to go
      ended = std::move(server);
      break;
    }
    if (server) {
      if (detail::same_secret(server->core_->secret(), access.secret)) return server;
      throw_error(errc::invalid_argument,
                  fmt::format("this process serves the store at {} already, with another secret", key));
    }
    table.gone.wait(lock);  // its last owner is closing it
  }
  auto core = std::make_unique<detail::store_server_core>(host, at, limits, access);
  const std::string key = detail::host_and_port(at.host(), core->port());  // with the actual port if any free one was
                                                                           // requested
  server.reset(new tcp_store_server(std::move(core)), [key](tcp_store_server* ending) {
    delete ending;
    detail::server_table& all = detail::servers();
    {
      const std::lock_guard erasing(all.mutex);
      // The port may already belong to a new server.
      if (const auto found = all.servers.find(key); found != all.servers.end() && found->second.expired()) {
        all.servers.erase(found);
      }
    }
    all.gone.notify_all();
  });
  table.servers.insert_or_assign(key, server);
  return server;
}

std::uint16_t tcp_store_server::port() const noexcept { return core_->port(); }
const std::string& tcp_store_server::address() const noexcept { return core_->address(); }
std::size_t tcp_store_server::connections() const { return core_->connections(); }

}  // namespace ferry::inline v0

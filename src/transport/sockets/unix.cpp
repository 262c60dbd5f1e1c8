#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include <cerrno>
#include <system_error>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "socket_transport.hpp"
#include "stream_socket.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Only processes of the same user, or of root, may connect: abstract names have no file permissions.
std::string check_user(int descriptor) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    return "the user of the peer is not known: " + std::generic_category().message(errno);
  }
  if (who.uid == ::geteuid() || who.uid == 0) return {};
  return fmt::format("process {} runs as user {}, this one as user {}", who.pid, who.uid, ::geteuid());
}

// Unguessable, so that no other process can take the name first or listen on it afterwards.
unique_fd open_unbound() {
  const auto name = fmt::format("@ferry-{}-{:016x}{:016x}", ::getpid(), incarnation_id::random().value,
                                incarnation_id::random().value);
  int failure = 0;
  auto socket = listen_on(socket_address::from_unix(name), failure);
  if (socket.get() < 0) throw_errno(errc::system_failure, fmt::format("cannot listen on unix:{}", name), failure);
  return socket;
}

class unix_transport final : public socket_transport {
 public:
  explicit unix_transport(reactor& loop) : socket_transport(loop, transport_traits<unix_domain>::name, &check_user) {}

  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string&,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    const auto used = use_listener(
        group, target, options, std::move(acceptor), [](const listener&) { return true; }, &open_unbound);
    return {address{"unix", used->where().text(), 0}.to_string()};
  }
};

}  // namespace
}  // namespace detail

std::string transport_traits<unix_domain>::unusable() {
  if (detail::unique_fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)).get() >= 0) return {};
  return "cannot open a unix socket: " + std::generic_category().message(errno);
}

std::shared_ptr<transport> transport_traits<unix_domain>::open(reactor& loop) {
  return detail::shared_transport<detail::unix_transport>(loop);
}

}  // namespace ferry::inline v0

#include <ferry/transport/transport.hpp>

#include <cerrno>
#include <system_error>

#include <sys/socket.h>

#include "local_socket.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

class unix_transport final : public local_transport {
 public:
  explicit unix_transport(reactor& loop)
      : local_transport(loop, transport_traits<unix_domain>::name, carriage::socket) {}
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

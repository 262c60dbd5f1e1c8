#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include <cerrno>
#include <system_error>

#include <sys/socket.h>

#include "local_socket.hpp"
#include "socket_transport.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

class unix_transport final : public socket_transport {
 public:
  explicit unix_transport(reactor& loop)
      : socket_transport(loop, transport_traits<unix_domain>::name, &check_local_user) {}

  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string&,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    const auto used = use_listener(
        group, target, options, std::move(acceptor), [](const listener&) { return true; }, &listen_under_fresh_name);
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

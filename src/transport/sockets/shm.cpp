#include <ferry/base/error.hpp>
#include <ferry/transport/address.hpp>
#include <ferry/transport/transport.hpp>

#include "../shm/shared_rings.hpp"
#include "local_socket.hpp"
#include "socket_transport.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Unix sockets for the handshake, after which the connecting end hands over the memory of the rings. The socket stays
// open: it wakes the other end, and its end is the end of the peer.
class shm_transport final : public socket_transport {
 public:
  explicit shm_transport(reactor& loop)
      : socket_transport(loop, transport_traits<shm>::name, &check_local_user, carriage::shared_memory) {}

  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string&,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) override {
    const auto used = use_listener(
        group, target, options, std::move(acceptor), [](const listener&) { return true; }, &listen_under_fresh_name);
    return {address{"shm", used->where().text(), 0}.to_string()};
  }
};

}  // namespace
}  // namespace detail

std::string transport_traits<shm>::unusable() {
  if (auto why = transport_traits<unix_domain>::unusable(); !why.empty()) return why;
  try {
    (void)detail::shared_rings::create(detail::smallest_ring);
    return {};
  } catch (const error& why) {
    return std::string(why.message());
  }
}

std::shared_ptr<transport> transport_traits<shm>::open(reactor& loop) {
  return detail::shared_transport<detail::shm_transport>(loop);
}

}  // namespace ferry::inline v0

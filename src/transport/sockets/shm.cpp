#include <ferry/base/error.hpp>
#include <ferry/transport/transport.hpp>

#include "../shm/shared_rings.hpp"
#include "local_socket.hpp"

namespace ferry::inline v0 {
namespace detail {
namespace {

// Unix sockets for the handshake, after which the connecting end hands over the memory of the rings. The socket stays
// open: it wakes the other end, and its end is the end of the peer.
class shm_transport final : public local_transport {
 public:
  explicit shm_transport(reactor& loop) : local_transport(loop, transport_traits<shm>::name, carriage::shared_memory) {}
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

#include "stream_connection.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <ferry/base/error.hpp>

#include "stream_connection_impl.hpp"

namespace ferry::inline v0::detail {

std::shared_ptr<connection> make_stream_connection(reactor& loop, int descriptor, std::string_view transport_name,
                                                   std::string description, const transport_options& options,
                                                   std::shared_ptr<void> kept, std::uint64_t features,
                                                   std::unique_ptr<shared_rings> rings,
                                                   std::shared_ptr<direct_memory> direct) {
  // Blocking, with a timeout: calls that must not wait pass MSG_DONTWAIT.
  timeval bound{};
  bound.tv_usec = std::chrono::microseconds(plain_wait).count();
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor, F_SETFL, flags & ~O_NONBLOCK) < 0 ||
      ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &bound, sizeof bound) != 0) {
    const int reason = errno;
    ::close(descriptor);
    throw_errno(errc::system_failure, "setting up a connection", reason);
  }
  try {
    return std::make_shared<stream_connection>(loop.shared_from_this(), descriptor, transport_name,
                                               std::move(description), options, std::move(kept), features,
                                               std::move(rings), std::move(direct));
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace ferry::inline v0::detail

#pragma once

// What the transports over unix sockets share.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/transport/transport.hpp>

#include "../../base/unique_fd.hpp"
#include "socket_transport.hpp"

namespace ferry::inline v0::detail {

/// Why the peer is refused: only processes of the same user, or of root, may connect, because abstract names have no
/// file permissions.
std::string check_local_user(int descriptor);

/// A socket that listens under an abstract name that cannot be guessed, so that no other process can take the name first
/// or listen on it afterwards. Throws errc::system_failure.
unique_fd listen_under_fresh_name();

/// A transport whose workers listen under names that cannot be guessed, and are reached by processes of the same user.
class local_transport : public socket_transport {
 public:
  std::vector<std::string> listen(const std::string& group, const std::string& target, const std::string& local_address,
                                  const transport_options& options,
                                  std::shared_ptr<connection_acceptor> acceptor) final;

 protected:
  /// `name` is also the scheme of its addresses; a literal.
  local_transport(reactor& loop, std::string_view name, carriage carried_by)
      : socket_transport(loop, name, &check_local_user, carried_by), name_(name) {}

 private:
  const std::string_view name_;
};

}  // namespace ferry::inline v0::detail

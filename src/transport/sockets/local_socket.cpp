#include "local_socket.hpp"

#include <cerrno>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>
#include <ferry/transport/address.hpp>

#include "stream_socket.hpp"

namespace ferry::inline v0::detail {

std::string check_local_user(int descriptor) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    return "the user of the peer is not known: " + std::generic_category().message(errno);
  }
  if (who.uid == ::geteuid() || who.uid == 0) return {};
  return fmt::format("process {} runs as user {}, this one as user {}", who.pid, who.uid, ::geteuid());
}

unique_fd listen_under_fresh_name() {
  const auto name = fmt::format("@ferry-{}-{:016x}{:016x}", ::getpid(), incarnation_id::random().value,
                                incarnation_id::random().value);
  int failure = 0;
  auto socket = listen_on(socket_address::from_unix(name), failure);
  if (!socket) throw_errno(errc::system_failure, fmt::format("cannot listen on unix:{}", name), failure);
  return socket;
}

std::vector<std::string> local_transport::listen(const std::string& group, const std::string& target,
                                                 const std::string&, const transport_options& options,
                                                 std::shared_ptr<connection_acceptor> acceptor) {
  const auto used = use_listener(
      group, target, options, std::move(acceptor), [](const listener&) { return true; }, &listen_under_fresh_name);
  return {address{std::string(name_), used->where().text(), 0}.to_string()};
}

}  // namespace ferry::inline v0::detail

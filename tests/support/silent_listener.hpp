#pragma once

#include <cerrno>
#include <cstdint>
#include <system_error>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ferry_test {

/// A TCP port of this machine whose connections open, and which never sends anything.
class silent_listener {
 public:
  silent_listener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    if (socket_ < 0 || ::bind(socket_, generic, size) != 0 || ::listen(socket_, 128) != 0 ||
        ::getsockname(socket_, generic, &size) != 0) {
      throw std::system_error(errno, std::generic_category(), "a listening socket");
    }
    port_ = ntohs(address.sin_port);
  }
  ~silent_listener() { ::close(socket_); }
  silent_listener(const silent_listener&) = delete;
  silent_listener& operator=(const silent_listener&) = delete;
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

 private:
  int socket_;
  std::uint16_t port_ = 0;
};

}  // namespace ferry_test

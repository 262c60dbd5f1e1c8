#pragma once

// A plain blocking socket, for peers that violate the protocol.

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace store_test {

using namespace ferry::test_kit;

class raw_socket {
 public:
  explicit raw_socket(int fd) : fd_(fd) {
    if (fd < 0) fail("socket");
  }
  raw_socket(raw_socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  raw_socket(const raw_socket&) = delete;
  raw_socket& operator=(raw_socket&&) = delete;
  ~raw_socket() { close(); }

  static raw_socket connect(std::uint16_t port) {
    raw_socket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in to = loopback(port);
    if (::connect(made.fd_, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0) fail("connect");
    return made;
  }
  static raw_socket listen(std::uint16_t port = 0) {
    raw_socket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in at = loopback(port);
    if (::bind(made.fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) fail("bind");
    if (::listen(made.fd_, 16) != 0) fail("listen");
    return made;
  }
  raw_socket accept() { return raw_socket(::accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)); }

  [[nodiscard]] std::uint16_t port() const {
    sockaddr_in at{};
    socklen_t size = sizeof(at);
    if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&at), &size) != 0) fail("getsockname");
    return ntohs(at.sin_port);
  }
  /// Sends what the peer accepts; false if it closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  /// Receives up to `count` bytes; fewer if the peer closes the connection before.
  std::string receive(std::size_t count) {
    std::string bytes(count, '\0');
    std::size_t have = 0;
    while (have != count) {
      const ssize_t got = ::recv(fd_, bytes.data() + have, count - have, 0);
      if (got <= 0) break;
      have += static_cast<std::size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }
  /// Waits until the peer closes the connection.
  void wait_closed() {
    char byte = 0;
    while (::recv(fd_, &byte, 1, 0) > 0) {
    }
  }
  [[nodiscard]] int descriptor() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }
  [[noreturn]] static void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }
  int fd_;
};

}  // namespace store_test

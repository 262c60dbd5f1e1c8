#pragma once

// Blocking sockets and captured log lines, for misbehaving peers.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ferry/base/log.hpp>

#include <ferry/test_kit/transport_kit.hpp>

namespace ferry::test_kit {

/// A blocking IPv4 socket on the loopback network.
class raw_socket {
 public:
  raw_socket() = default;
  explicit raw_socket(int descriptor) : descriptor_(descriptor) { limit_waiting(); }
  raw_socket(raw_socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  raw_socket& operator=(raw_socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~raw_socket() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  static raw_socket unconnected() { return raw_socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }
  static raw_socket connected(std::uint16_t port) {
    auto result = unconnected();
    result.connect(port);
    return result;
  }
  /// From 127.0.0.`host`.
  static raw_socket connected_from(unsigned host, std::uint16_t port) {
    auto result = unconnected();
    auto own = loopback(0);
    own.sin_addr.s_addr = htonl((INADDR_LOOPBACK & ~0xffU) | host);
    if (::bind(result.descriptor_, reinterpret_cast<sockaddr*>(&own), sizeof own) != 0) {
      throw std::runtime_error("cannot bind to an address of loopback");
    }
    result.connect(port);
    return result;
  }
  void connect(std::uint16_t port) const {
    auto where = loopback(port);
    if (::connect(descriptor_, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0) {
      throw std::runtime_error("cannot connect to the port");
    }
  }
  /// On `port`, or any free one.
  static raw_socket listening(std::uint16_t port = 0) {
    auto result = unconnected();
    const int on = 1;  // ended connections may still be in TIME_WAIT at the port
    ::setsockopt(result.descriptor_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    auto where = loopback(port);
    if (::bind(result.descriptor_, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0 ||
        ::listen(result.descriptor_, 10) != 0) {
      throw std::runtime_error("cannot listen");
    }
    return result;
  }
  raw_socket accept() { return raw_socket(::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC)); }

  [[nodiscard]] std::uint16_t port() const {
    sockaddr_in where{};
    socklen_t size = sizeof where;
    ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&where), &size);
    return ntohs(where.sin_port);
  }
  void send(std::span<const std::byte> bytes) const { send(bytes.data(), bytes.size()); }
  void send(std::string_view text) const { send(text.data(), text.size()); }
  /// Up to `count` bytes; fewer if the peer closed.
  [[nodiscard]] std::vector<std::byte> receive(std::size_t count) const {
    std::vector<std::byte> result(count);
    std::size_t filled = 0;
    while (filled < count) {
      const auto got = ::recv(descriptor_, result.data() + filled, count - filled, 0);
      if (got <= 0) break;
      filled += static_cast<std::size_t>(got);
    }
    result.resize(filled);
    return result;
  }
  /// Whether the peer closes, after any data it still sends.
  [[nodiscard]] bool wait_closed() const {
    char buffer[4096];
    while (true) {
      const auto got = ::recv(descriptor_, buffer, sizeof buffer, 0);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return true;
      if (got < 0 && errno != EINTR) return false;
    }
  }
  /// Whether the peer closes within that time; data received meanwhile is dropped.
  [[nodiscard]] bool closes_within(std::chrono::milliseconds time) const {
    pollfd watched{descriptor_, POLLIN, 0};
    if (::poll(&watched, 1, static_cast<int>(time.count())) <= 0) return false;
    char buffer[4096];
    const auto got = ::recv(descriptor_, buffer, sizeof buffer, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  /// Makes a blocked accept() fail.
  void stop_listening() const { ::shutdown(descriptor_, SHUT_RDWR); }
  void finish_sending() const { ::shutdown(descriptor_, SHUT_WR); }

 private:
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in result{};
    result.sin_family = AF_INET;
    result.sin_port = htons(port);
    result.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return result;
  }
  void limit_waiting() const {
    if (descriptor_ < 0) throw std::runtime_error("no socket");
    const timeval limit{patience.count(), 0};
    ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  void send(const void* data, std::size_t size) const {
    const auto* at = static_cast<const char*>(data);
    while (size != 0) {
      const auto sent = ::send(descriptor_, at, size, MSG_NOSIGNAL);
      if (sent <= 0) return;  // the peer has closed: the test checks that
      at += sent;
      size -= static_cast<std::size_t>(sent);
    }
  }
  int descriptor_ = -1;
};

/// Collects the log lines of its lifetime.
class captured_log {
 public:
  captured_log() { ferry::set_log_sink(&captured_log::sink, this); }
  ~captured_log() { ferry::set_log_sink(nullptr, nullptr); }
  captured_log(const captured_log&) = delete;
  captured_log& operator=(const captured_log&) = delete;

  /// Waits for a line that contains `text`.
  bool wait_for_line(std::string_view text) {
    std::unique_lock lock(mutex_);
    return wait_for(lock, news_, [&] {
      for (const auto& line : lines_) {
        if (line.find(text) != line.npos) return true;
      }
      return false;
    });
  }
  std::size_t count(std::string_view text) {
    const std::lock_guard lock(mutex_);
    std::size_t result = 0;
    for (const auto& line : lines_) result += line.find(text) != line.npos ? 1 : 0;
    return result;
  }

 private:
  static void sink(ferry::log_level, std::string_view text, void* user) {
    auto& self = *static_cast<captured_log*>(user);
    const std::lock_guard lock(self.mutex_);
    self.lines_.emplace_back(text);
    self.news_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable news_;
  std::vector<std::string> lines_;
};

}  // namespace ferry::test_kit

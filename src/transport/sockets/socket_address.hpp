#pragma once

// Socket addresses of every family as values, and the descriptors made for them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/socket.h>

namespace ferry::inline v0::detail {

struct socket_address {
  sockaddr_storage storage{};
  socklen_t size = 0;

  static socket_address copy(const void* address, socklen_t size);
  /// Empty unless `host` is an IP literal; IPv6 may have a scope id.
  static std::optional<socket_address> from_literal(const std::string& host, std::uint16_t port);
  /// "@name" is an abstract name, "/path" a path. At most 107 bytes.
  static socket_address from_unix(std::string_view name);
  /// All addresses of a host name, in the resolver's order; may block. Throws errc::bad_address.
  static std::vector<socket_address> resolve(const std::string& host, std::uint16_t port);
  static socket_address local_end(int descriptor);
  static socket_address remote_end(int descriptor);

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
  /// The IP literal, with the scope id of a link-local address.
  [[nodiscard]] std::string host() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;
  [[nodiscard]] bool is_link_local() const noexcept;
  /// "10.0.0.2:4711", "[::1]:4711", "@name", "/path"; "unnamed" for an unbound unix socket.
  [[nodiscard]] std::string text() const;
  /// Whether both denote the same end, port included.
  [[nodiscard]] bool same_as(const socket_address& other) const noexcept;
};

/// Owner of a file descriptor.
class descriptor {
 public:
  descriptor() noexcept = default;
  explicit descriptor(int value) noexcept : value_(value) {}
  descriptor(descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~descriptor();
  [[nodiscard]] int get() const noexcept { return value_; }
  [[nodiscard]] int release() noexcept { return std::exchange(value_, -1); }

 private:
  int value_ = -1;
};

/// A non-blocking stream socket that is not inherited by new programs. Throws errc::system_failure.
descriptor open_stream_socket(int family);
/// Options of a connection: no delay and keep-alive probes for tcp, large buffers for unix. An option that the system
/// refuses is left at its default: each only improves speed or how soon a vanished machine is detected.
void tune_connection(int descriptor, int family) noexcept;
/// A listening socket on `where`. If the address is not available, `system_error` receives errno and the result is
/// empty.
descriptor listen_on(const socket_address& where, int& system_error);

}  // namespace ferry::inline v0::detail

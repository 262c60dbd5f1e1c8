#pragma once

// A listening socket: accepts connections and starts their handshakes.

#include <chrono>
#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include <asio/posix/stream_descriptor.hpp>
#include <asio/steady_timer.hpp>

#include "socket_core.hpp"
#include "stream_socket.hpp"

namespace ferry::inline v0::detail {

class accept_handshake;

/// Everything but the constructor and where() runs on the control thread.
class listener final : public control_operation, public std::enable_shared_from_this<listener> {
 public:
  /// Examines a connected descriptor and returns why its peer is refused; empty if it is admitted. May be null.
  using peer_check = std::string (*)(int descriptor);

  /// `options` gives the limits on handshakes.
  listener(std::shared_ptr<socket_core> core, unique_fd socket, peer_check check, const transport_options& options);

  /// Begins to accept.
  void start();
  /// Stops listening; handshakes in progress continue.
  void abort() noexcept override;

  /// The address of the listening socket.
  [[nodiscard]] const socket_address& where() const noexcept { return where_; }
  [[nodiscard]] std::chrono::milliseconds handshake_timeout() const noexcept { return handshake_timeout_; }

 private:
  friend class accept_handshake;

  void wait_for_peers();
  void accept_some();
  [[nodiscard]] unique_fd accept_one(int& system_error);
  void begin_handshake(unique_fd accepted);
  /// Called when a handshake is over.
  void handshake_ended(accept_handshake& which) noexcept;
  /// Drops the handshake that deserves its place least, now or once it has had its time.
  void make_room();
  [[nodiscard]] accept_handshake& least_deserving() const;

  std::shared_ptr<socket_core> core_;
  const socket_address where_;
  const peer_check check_;
  const std::chrono::milliseconds handshake_timeout_;
  const std::size_t max_handshakes_;
  asio::posix::stream_descriptor socket_;
  asio::steady_timer timer_;
  std::list<accept_handshake*> handshakes_;  // oldest first
  bool over_limit_ = false;                  // not accepting until a handshake ends
  bool warned_ = false;                      // that accept fails, since it last succeeded
  bool closed_ = false;
};

}  // namespace ferry::inline v0::detail

#pragma once

// One blocking connection of a tcp_store to its server, with deadlines and interruption.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "../../base/net/socket_address.hpp"
#include "../../base/unique_fd.hpp"
#include "../interrupt.hpp"
#include "tcp_protocol.hpp"

namespace ferry::inline v0::detail {

/// The first message of a server.
struct server_hello {
  std::uint16_t version = 0;
  store_wire::hello_status status = {};
  std::uint64_t server = 0;
  std::uint32_t max_key_bytes = 0;
  std::uint32_t max_value_bytes = 0;
};

class store_connection {
 public:
  /// How a step ended. `broken` leaves the reason in problem().
  enum class outcome { done, broken, expired, interrupted };

  explicit store_connection(const interrupt& stop) noexcept : stop_(stop) {}
  /// For a connected, non-blocking socket.
  store_connection(const interrupt& stop, unique_fd socket) noexcept : stop_(stop), socket_(std::move(socket)) {}

  /// Opens the connection; sets `refused` if the host refused it because no process listens on the port.
  outcome open(const socket_address& to, deadline until, bool& refused);
  /// Exchanges hellos, and proofs of the secret unless it is empty. Throws errc::handshake_failed if the peer is not a
  /// store, errc::authentication_failed if only one side has a secret, or the secrets differ.
  outcome greet(std::uint64_t client, deadline until, server_hello& hello, const std::string& secret = {});
  /// Sends a request and receives the reply's status and body. When the deadline passes, it cancels the request, which
  /// has a reply too; `expired` if the server does not answer that promptly either. Throws errc::protocol_error.
  outcome exchange(std::string_view request, deadline until, store_wire::status& status, std::string& body);

  void set_max_body_bytes(std::size_t bytes) noexcept { max_body_bytes_ = bytes; }
  /// False if the peer has closed it meanwhile.
  [[nodiscard]] bool alive() const noexcept;
  [[nodiscard]] const std::string& problem() const noexcept { return problem_; }
  /// Whether any byte of the last request was passed to the kernel.
  [[nodiscard]] bool sent_anything() const noexcept { return sent_anything_; }
  [[nodiscard]] socket_address local() const;

 private:
  /// The server's hello, appended to `bytes`.
  outcome receive_hello(std::string& bytes, deadline until, server_hello& hello);
  outcome receive_more(std::string& bytes, std::size_t count, deadline until);
  outcome send_all(std::string_view bytes, deadline until);
  /// Fills `out` from byte `have` on, and updates `have`.
  outcome receive(std::span<char> out, std::size_t& have, deadline until);
  outcome broken(std::string reason);
  outcome broken(int errno_value);

  const interrupt& stop_;
  unique_fd socket_;
  std::size_t max_body_bytes_ = store_wire::max_body_bytes(0);
  bool sent_anything_ = false;
  std::string problem_;
};

}  // namespace ferry::inline v0::detail

#pragma once

// The accepting end of one handshake.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <asio/steady_timer.hpp>

#include "../shm/shared_rings.hpp"
#include "handshake.hpp"
#include "listener.hpp"
#include "pool_exchange.hpp"
#include "socket_core.hpp"

namespace ferry::inline v0::detail {

/// Everything runs on the control thread.
class accept_handshake final : public control_operation, public std::enable_shared_from_this<accept_handshake> {
 public:
  accept_handshake(std::shared_ptr<socket_core> core, std::shared_ptr<listener> owner, unique_fd accepted);

  void start();
  void abort() noexcept override { finish(); }
  /// Ends it, and says why.
  void give_up(std::string_view why);
  [[nodiscard]] std::chrono::steady_clock::time_point began() const noexcept { return began_; }
  enum class progress : std::uint8_t { silent, begun, greeted };  ///< greeted: a whole hello has arrived
  [[nodiscard]] progress advance() const noexcept;
  /// The IP address of the peer; empty for unix sockets.
  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  /// A worker here expects peers from that address.
  [[nodiscard]] bool expected() const noexcept { return expected_; }

 private:
  void read_body();
  void take_hello();
  /// Requires the peer to prove one of these secrets.
  void challenge_peer(std::vector<std::string> secrets);
  void read_proof();
  void read_proof_body();
  void take_proof();
  /// Called once the peer has proved what is demanded: the target worker decides.
  void admit();
  void check_descriptors();
  void refuse(const refusal& why);
  void send_answer(void (accept_handshake::*next)());
  void complete_handshake();
  /// The same, where messages go through shared memory: the peer hands it over first.
  void await_rings();
  void take_rings();
  /// Exchanges pools of GPU memory where both ends have some.
  void await_pools();
  void take_pools();
  void await_pool_answer();
  void take_pool_answer();
  void peer_is_gone(std::string_view why) noexcept;
  void finish() noexcept;
  /// A completion handler that does nothing once the handshake is over, ends it when the peer has disconnected, and
  /// lets no exception escape.
  auto then(void (accept_handshake::*next)());

  std::shared_ptr<socket_core> core_;
  std::shared_ptr<listener> owner_;
  stream_socket socket_;
  asio::steady_timer timer_;
  const std::string peer_;  // for messages
  const std::string host_;
  const bool expected_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::array<std::byte, handshake_prefix::encoded_size> prefix_bytes_{};
  handshake_prefix prefix_;
  std::vector<std::byte> body_;
  std::vector<std::byte> answer_;
  std::vector<std::byte> hello_bytes_;  // the whole message, for the proofs
  std::vector<std::byte> challenge_;
  std::vector<std::string> secrets_;  // of the target worker, or of all local workers
  std::string secret_;                // that the peer has proved
  hello hello_;
  acceptor_registry::admission admission_;
  std::unique_ptr<shared_rings> rings_;
  bool shares_host_memory_ = false;
  shared_host_memory host_memory_;
  bool exchanges_pools_ = false;
  pool_exchange pools_;
  std::shared_ptr<direct_memory> direct_;
  progress progress_ = progress::silent;
  bool refused_short_ = false;  // because descriptors are short
  bool done_ = false;
};

}  // namespace ferry::inline v0::detail

#pragma once

// The connecting end: resolves, tries each address, performs the handshake.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "../shm/shared_rings.hpp"
#include "handshake.hpp"
#include "listener.hpp"
#include "pool_exchange.hpp"
#include "socket_core.hpp"
#include "stream_socket.hpp"

namespace ferry::inline v0::detail {

struct connect_request {
  std::string address;  ///< as the caller gave it
  hello self;
  transport_options options;
  deadline until;
  connect_callback callback;
};

/// Everything but the constructor runs on the control thread.
class connect_operation final : public control_operation, public std::enable_shared_from_this<connect_operation> {
 public:
  connect_operation(std::shared_ptr<socket_core> core, connect_request request, listener::peer_check check);

  /// Parses the address and begins.
  void start();
  void abort() noexcept override;

 private:
  void resolve(const std::string& host, std::uint16_t port);
  void try_next();
  /// Throws errc::resource_exhausted where descriptors are short, else what open_stream_socket() throws.
  [[nodiscard]] unique_fd open_socket(int family);
  void send_hello();
  void read_prefix();
  void read_body();
  void take_answer();
  void prove_secret();
  /// The answer is good: hands over shared memory where messages go through it, and opens the connection.
  void offer_rings();
  void read_verdict();
  /// The same, where it comes with the peer's host memory.
  void read_verdict_with_memory();
  void take_verdict(const rings_verdict& verdict);
  void take_refusal();
  [[nodiscard]] bool both_have(std::uint64_t feature) const noexcept;
  /// The rings are there: exchanges pools of GPU memory where both ends have some.
  void exchange_pools();
  void await_pools();
  void take_pools();
  void end_pools();
  /// Nothing but host memory is shared besides.
  void share_memory();
  void open_connection();
  /// The accepting end has not proved the secret: its answer is not trusted.
  void take_unproved(const std::variant<hello_reply, refusal, challenge>& answer);
  [[nodiscard]] bool wants_proof() const noexcept { return !request_.options.secret.empty(); }
  /// This address failed: tries the next one.
  void attempt_failed(errc code, const std::string& reason) noexcept;
  void fail(errc code, const std::string& reason) noexcept;
  void finish(connect_result result) noexcept;
  void arm_timer(std::chrono::steady_clock::duration step_limit);
  std::string current_text() const;
  /// A completion handler of the current attempt: does nothing once that is over, and lets no exception escape.
  auto then(void (connect_operation::*next)());

  std::shared_ptr<socket_core> core_;
  connect_request request_;
  const listener::peer_check check_;
  std::optional<asio::ip::tcp::resolver> resolver_;
  stream_socket socket_;
  asio::steady_timer timer_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::vector<socket_address> candidates_;
  std::size_t next_ = 0;
  std::uint64_t attempt_ = 0;  // identifies handlers of an abandoned attempt
  std::string reasons_;        // of the attempts that failed
  errc worst_ = errc::connect_failed;
  bool hung_up_ = false;
  std::size_t tried_ = 0;             // candidates for which a socket could be opened
  std::size_t refused_ = 0;           // of those: no listener there
  std::vector<std::byte> hello_;      // as it is sent, or was sent
  std::vector<std::byte> challenge_;  // complete; empty until received
  std::vector<std::byte> proof_;
  std::array<std::byte, handshake_prefix::encoded_size> prefix_bytes_{};
  std::vector<std::byte> body_;
  hello_reply peer_;  // as it answered
  std::unique_ptr<shared_rings> rings_;
  errc refusal_{};  // of the rings
  shared_host_memory host_memory_;
  pool_exchange pools_;
  std::shared_ptr<direct_memory> direct_;
  bool done_ = false;
};

}  // namespace ferry::inline v0::detail

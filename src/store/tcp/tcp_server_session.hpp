#pragma once

// One connection of a tcp_store_server: its bytes, its state, and the limits on both. Runs on the server's thread only.

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include "tcp_protocol.hpp"

namespace ferry::inline v0::detail {

class store_server_core;

class store_session final : public std::enable_shared_from_this<store_session> {
 public:
  store_session(store_server_core& server, asio::ip::tcp::socket socket);

  void start();
  /// Closes the connection and cancels its wait. Idempotent.
  void close();
  /// The key that it waits for has changed.
  void wake();

  [[nodiscard]] bool has_greeted() const noexcept { return client_.has_value(); }
  [[nodiscard]] std::optional<std::uint64_t> client() const noexcept { return client_; }

  /// Its place among the connections that have not sent a hello; kept by the server.
  std::list<store_session*>::iterator unidentified_place;
  /// The key under which the server finds it to wake it; empty if it does not wait.
  std::string waits_for;

 private:
  enum class phase { hello, proof, idle, parked, replying, closed };
  // A get or wait_change that cannot be answered yet.
  struct pending_get {
    std::string body;  // of the request: the keys are read where they are
    std::uint8_t flags = 0;
    std::uint32_t count = 0;
    std::size_t next = 0;  // where the key begins that was missing; those before it exist, or did

    [[nodiscard]] std::string_view take(std::size_t& at) const;
  };
  struct pending_change {
    std::string key;
    std::uint64_t last_version;
  };

  template <class Action>
  void guarded(Action action);
  void want_readable();
  void readable(const asio::error_code& problem);
  void process();
  bool take_hello();
  bool take_proof();
  /// Answers a hello or a proof; any other status than welcome and challenge ends the connection.
  bool answer_hello(store_wire::hello_status status);
  [[nodiscard]] bool greeting() const noexcept { return phase_ == phase::hello || phase_ == phase::proof; }
  bool take_frame();
  void limit_time(bool needed);
  /// Waits for a key: counts the memory of the request, or refuses it if that exceeds the limit.
  void park(std::string_view key);
  void release_request() noexcept;
  /// Counts the memory of what has arrived, which may be more than its bytes.
  void account_input();

  void execute(store_wire::operation what, std::string body);
  void try_get();
  void try_change();
  void cancel();
  void reply_error(errc code, std::string_view text);
  void reply(std::string frame);
  void send(std::string bytes);
  void flush();

  store_server_core& server_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  bool timer_runs_ = false;
  bool reading_ = false;
  bool close_after_reply_ = false;
  phase phase_ = phase::hello;
  phase after_reply_ = phase::idle;
  std::string hello_;  // of a client that offers to prove the secret: its hello, and the reply
  std::string challenge_;
  std::uint64_t announced_client_ = 0;
  std::optional<std::uint64_t> client_;
  std::string in_;
  std::size_t in_used_ = 0;
  std::size_t in_charged_ = 0;
  std::string out_;
  std::size_t out_sent_ = 0;
  std::size_t out_charged_ = 0;  // once the client does not read as fast as it is answered
  std::size_t held_ = 0;         // of the request that waits
  std::optional<pending_get> get_;
  std::optional<pending_change> change_;
};

}  // namespace ferry::inline v0::detail

#pragma once

// The server side of the tcp store: sockets, the thread, the table, and which session waits for which key.

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include <fmt/format.h>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include <ferry/store/tcp_store.hpp>

#include "../../base/net/socket_address.hpp"
#include "../../base/peer_log.hpp"
#include "../memory/key_table.hpp"
#include "tcp_protocol.hpp"

namespace ferry::inline v0::detail {

class store_session;

class store_server_core {
 public:
  /// Listens. Throws errc::address_in_use, errc::system_failure.
  store_server_core(const std::string& host, const socket_address& at, const tcp_store_limits& limits,
                    const tcp_store_access& access);
  /// Without listener and thread: the creator begins the sessions and runs context().
  explicit store_server_core(const tcp_store_limits& limits, std::string secret = {});
  /// Closes everything and joins the thread.
  ~store_server_core();
  store_server_core(const store_server_core&) = delete;
  store_server_core& operator=(const store_server_core&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] std::size_t connections() const;
  /// Blocks until no client but `self` is connected, or `gave_up()` after kick(); false if the deadline passed first.
  template <class GaveUp>
  bool wait_alone(std::uint64_t self, deadline until, GaveUp gave_up) {
    std::unique_lock lock(clients_mutex_);
    const auto done = [&] {
      return gave_up() || clients_.empty() || (clients_.size() == 1 && clients_.contains(self));
    };
    if (until.is_never()) {
      clients_changed_.wait(lock, done);
      return true;
    }
    return clients_changed_.wait_until(lock, until.at(), done);
  }
  void kick();
  /// Closes the listener, so new clients cannot connect; connected ones are still served. Thread-safe.
  void stop_accepting() noexcept;
  /// True until stop_accepting(). False only once the listener is closed, for which this waits: the port is free then.
  [[nodiscard]] bool accepts() const;

  // For the sessions, on the server's thread.
  asio::io_context& context() noexcept { return context_; }
  /// Serves a connected, non-blocking stream socket.
  void begin_session(asio::ip::tcp::socket socket);
  [[nodiscard]] const tcp_store_limits& limits() const noexcept { return limits_; }
  [[nodiscard]] const std::string& secret() const noexcept { return secret_; }
  [[nodiscard]] std::uint64_t id() const noexcept { return id_; }
  [[nodiscard]] const key_table& table() const noexcept { return table_; }
  /// Throws errc::store_failed if the content would exceed its limit.
  void set(std::string_view key, std::string value);
  bool erase(std::string_view key);
  void park(store_session& session, const std::string& key);
  void unpark(store_session& session);
  /// Whether one more client may be accepted: welcome, too_many_connections or no_descriptors.
  [[nodiscard]] store_wire::hello_status admission() const noexcept;
  void greeted(store_session& session);
  /// Logs a warning about a client; all clients share one limit.
  template <class Text>
  void warn(const Text& text) const noexcept {
    log_about_client(log_level::warning, text);
  }
  /// The same for what is of interest to programmers only.
  template <class Text>
  void note(const Text& text) const noexcept {
    log_about_client(log_level::debug, text);
  }
  void closed(store_session& session);
  /// Counts memory of unfinished messages and of replies that their clients have yet to read. It counts even if it
  /// throws errc::limit_exceeded, because it exceeds the limit.
  void charge(std::size_t bytes);
  void discharge(std::size_t bytes) noexcept { unfinished_bytes_ -= bytes; }
  [[nodiscard]] std::size_t unfinished_bytes() const noexcept { return unfinished_bytes_; }
  /// Counts memory of requests that wait for a key. Throws errc::limit_exceeded, and does not count it, if it exceeds
  /// the limit.
  void hold(std::size_t bytes);
  void release(std::size_t bytes) noexcept { held_bytes_ -= bytes; }
  [[nodiscard]] std::size_t held_bytes() const noexcept { return held_bytes_; }
  /// All sessions receive through this one buffer.
  std::array<char, 64 * 1024>& scratch() noexcept { return scratch_; }

 private:
  template <class Text>
  void log_about_client(log_level level, const Text& text) const noexcept {
    log_about("clients of the store", level,
              [&] { return fmt::format("store server at {}: {}", host_and_port(address_, port_), text()); });
  }
  void accept();
  void admit(asio::ip::tcp::socket socket);
  void close_all();
  void count_connections();
  void wake(std::string_view key);

  const tcp_store_limits limits_;
  const std::string secret_;
  const std::uint64_t id_;
  asio::io_context context_{1};
  asio::ip::tcp::acceptor acceptor_{context_};
  asio::steady_timer accept_again_{context_};
  std::uint16_t port_ = 0;
  std::string address_;

  key_table table_;
  std::uint64_t revision_ = 0;
  std::size_t unfinished_bytes_ = 0;
  std::size_t held_bytes_ = 0;
  std::unordered_map<std::string, std::set<store_session*>> waiting_;
  std::map<store_session*, std::shared_ptr<store_session>> sessions_;
  std::list<store_session*> unidentified_;  // oldest first
  std::array<char, 64 * 1024> scratch_{};
  bool stopping_ = false;
  enum class listener_state { open, closing, closed };
  listener_state listener_ = listener_state::open;  // guarded by clients_mutex_

  mutable std::mutex clients_mutex_;  // guards what follows
  mutable std::condition_variable clients_changed_;
  std::map<std::uint64_t, std::size_t> clients_;  // by client id, its connections
  std::size_t connections_ = 0;

  std::thread thread_;
};

}  // namespace ferry::inline v0::detail

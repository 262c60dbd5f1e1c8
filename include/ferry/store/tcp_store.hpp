#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <ferry/store/store.hpp>

namespace ferry::inline v0 {

/// Bounds of a tcp_store_server. Each is checked before the memory is allocated.
struct tcp_store_limits {
  std::size_t max_value_bytes = store::default_max_value_bytes;  ///< of one value; at most 1 GiB
  /// Of all keys and values, with 128 bytes more for each entry; again of unfinished messages and unread replies of all
  /// clients; and again of requests that wait for a key.
  std::size_t max_total_bytes = std::size_t{1} << 30U;
  std::size_t max_connections = 16384;  ///< of clients; a further one gets an error reply and
                                        ///< is closed
  /// How long a peer may take to send its hello or the rest of a message, or to accept a reply, before it is dropped.
  std::chrono::milliseconds message_timeout = std::chrono::seconds(30);
  /// The same for its hello, and for the proof of the secret if there is one.
  std::chrono::milliseconds handshake_timeout = std::chrono::seconds(10);
};

/// Access control of a tcp_store_server.
struct tcp_store_access {
  std::string secret = {};  ///< clients must prove knowledge of it; empty: clients must have none
  /// Allows access by other machines without a secret: any process that reaches the server can then read and write the
  /// store.
  bool allow_unauthenticated = false;
};

namespace detail {
class store_server_core;
class store_connection;
class interrupt;
namespace store_wire {
enum class status : std::uint8_t;
}
}  // namespace detail

/// Serves a key-value store to tcp_store clients, from one thread that sleeps when idle. The content lives as long as
/// the server. The wire format is specified in docs/protocol.md, "Store".
class tcp_store_server {
 public:
  /// Listens on `port` of `host`; port 0 takes any free one. A host that is loopback ("localhost", 127.0.0.1, ::1) or
  /// another IP address of this machine is the only address listened on; anything else (a name, an address that NAT
  /// maps to this machine) means all addresses. If this process serves that host and port already, the same server is
  /// returned and `limits` is ignored; one that admits no more clients (tcp_store::admit_no_more) is not shared, a new
  /// one takes the port while the old one serves those it has. Throws errc::address_in_use, errc::bad_address, errc::system_failure, all of
  /// which name host and port; errc::authentication_required if the server would be reachable beyond loopback and
  /// `access` gives neither secret nor permission; errc::invalid_argument if the server exists already with another
  /// secret.
  static std::shared_ptr<tcp_store_server> listen(const std::string& host, std::uint16_t port,
                                                  const tcp_store_limits& limits = {},
                                                  const tcp_store_access& access = {});
  /// Closes all connections: waits of clients end with errors.
  ~tcp_store_server();
  tcp_store_server(const tcp_store_server&) = delete;
  tcp_store_server& operator=(const tcp_store_server&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  /// The IP address listened on, "0.0.0.0" or "::" for all.
  [[nodiscard]] const std::string& address() const noexcept;
  /// Open connections, including those that have not sent a hello. Thread-safe, as the others.
  [[nodiscard]] std::size_t connections() const;

 private:
  friend class tcp_store;
  explicit tcp_store_server(std::unique_ptr<detail::store_server_core> core);
  std::unique_ptr<detail::store_server_core> core_;
};

/// What a tcp_store connects to.
struct tcp_store_options {
  std::string host;  ///< a name or an IP address; a scope id ("fe80::1%eth0") is supported
  std::uint16_t port = 0;
  /// Keeps this server running as long as the store; set where the store is hosted. A port of 0 then means its port.
  std::shared_ptr<tcp_store_server> server = nullptr;
  timeout limit = {};       ///< how long to try to reach the server; unset: the default timeout
  std::string secret = {};  ///< that the server and this client prove to each other; empty: none
};

/// A client of a tcp_store_server. One round trip per operation; concurrent threads use a connection each. If the
/// server cannot be reached at first, it retries until the deadline, so the server may start later.
///
/// When a connection breaks, idempotent operations (set, get, wait, list, count, wait_change) are retried on a fresh
/// one; add, compare_set and erase fail with errc::store_failed if it is unknown whether they were executed. A server
/// that refuses connections after it was reached once, or has lost its content, is an error at once.
class tcp_store final : public store {
 public:
  /// Connects. Throws errc::store_unreachable (host, port, time waited, last reason), errc::version_mismatch (both
  /// versions), errc::handshake_failed (another service listens there), errc::authentication_failed (the server has no
  /// secret, or another one), errc::bad_address (no host, or port 0).
  explicit tcp_store(tcp_store_options options);
  ~tcp_store() override;

  void close() noexcept override;
  bool drain(timeout limit = {}) override;
  void admit_no_more() noexcept override;
  [[nodiscard]] bool serves() const noexcept override { return options_.server != nullptr; }
  /// The local end of the first connection. If that is loopback although the host was not given as loopback (the
  /// server's own machine, or a name in /etc/hosts), the address by which this machine reaches others, if it has one.
  [[nodiscard]] std::string local_address() const override;
  [[nodiscard]] std::string describe() const override;
  /// The server that this process hosts for it; nullptr elsewhere.
  [[nodiscard]] const std::shared_ptr<tcp_store_server>& server() const noexcept { return options_.server; }

 protected:
  void do_set(std::string_view key, std::string_view value, deadline until) override;
  std::vector<std::string> do_get(std::span<const std::string> keys, bool values, deadline until) override;
  std::optional<std::string> do_try_get(std::string_view key, deadline until) override;
  std::int64_t do_add(std::string_view key, std::int64_t delta, deadline until) override;
  std::string do_compare_set(std::string_view key, std::string_view expected, std::string_view desired,
                             deadline until) override;
  bool do_erase(std::string_view key, deadline until) override;
  std::vector<store_entry> do_list(std::string_view prefix, deadline until) override;
  std::size_t do_count(std::string_view prefix, deadline until) override;
  store_change do_wait_change(std::string_view key, std::uint64_t last_version, deadline until) override;

 private:
  struct state;
  struct reply;
  std::unique_ptr<detail::store_connection> connect(deadline until, clock::time_point since);
  reply transact(const std::string& request, bool repeatable, deadline until, detail::store_wire::status also = {});

  tcp_store_options options_;
  std::unique_ptr<state> state_;
};

}  // namespace ferry::inline v0

#pragma once

// Transports make connections. Each is a specialisation of transport_traits.

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/base/ids.hpp>
#include <ferry/base/time.hpp>
#include <ferry/transport/connection.hpp>
#include <ferry/transport/reactor.hpp>
#include <ferry/wire/limits.hpp>

namespace ferry::inline v0 {

/// What one end of a connection says first (docs/protocol.md, Handshake).
struct hello {
  std::string group;  ///< the group's key; workers of two groups never talk
  std::string name;   ///< of the sender
  worker_id id;
  incarnation life;
  std::string target;  ///< name of the worker that is meant
  std::uint64_t features = 0;
};

/// The answer of the accepting end.
struct hello_reply {
  std::string name;
  worker_id id;
  incarnation life;
  std::uint64_t features = 0;
};

struct transport_options {
  /// Address or interface name to listen on. Empty: the address from which the store was reached, else loopback.
  std::string bind = {};
  /// What peers are told to connect to, "host" or "host:port" (NAT); empty: the address listened on.
  std::string advertise = {};
  std::uint16_t port = 0;       ///< 0: any free port
  std::uint16_t port_last = 0;  ///< with `port`: try port..port_last in turn
  /// Spin this long for a reply or the next request before sleeping; learned from recent waits, none on one core.
  std::chrono::microseconds max_spin{50};
  wire_limits limits = {};
};

/// The accepting side of the process: decides on hellos and takes the connections. Thread-safe.
class connection_acceptor {
 public:
  virtual ~connection_acceptor() = default;
  /// Answers a hello, or throws a ferry::error whose code and text go to the peer.
  virtual hello_reply on_hello(const hello& from) = 0;
  /// The connection is open; start() it. Called after on_hello returned.
  virtual void on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept = 0;
};

/// The outcome of transport::connect: `opened` is null and `error` set, or the other way round.
struct connect_result {
  std::shared_ptr<connection> opened;
  hello_reply peer;
  std::exception_ptr error;
};
using connect_callback = std::function<void(connect_result)>;

/// One transport of a process, shared by all its workers. Thread-safe.
class transport {
 public:
  virtual ~transport() = default;
  /// Starts accepting (idempotent: one listening socket per process and bind address) for one worker; connections whose
  /// hello names `group` and `target` go to `acceptor`. Returns the addresses to publish, "tcp://10.0.0.2:4711", best
  /// first. `suggested_host` is the local address from which the store was reached, may be empty.
  /// Throws errc::address_in_use, errc::bad_address, errc::system_failure.
  virtual std::vector<std::string> listen(const std::string& group, const std::string& target,
                                          const std::string& suggested_host, const transport_options& options,
                                          std::shared_ptr<connection_acceptor> acceptor) = 0;
  /// Takes the worker out again; no call of its acceptor is running or begins after this returned.
  virtual void unlisten(const std::string& group, const std::string& target) noexcept = 0;
  /// Opens a connection and shakes hands; `callback` is called once, on a library thread, never inline.
  virtual void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
                       connect_callback callback) = 0;
  /// Whether `address` is of this transport.
  [[nodiscard]] virtual bool understands(std::string_view address) const noexcept = 0;
};

/// Customisation point: specialise for a tag type.
///   static constexpr std::string_view name;         unique, lower case
///   static constexpr int priority;                  higher is tried first
///   static std::string unusable();                  empty if usable on this machine, else why not
///   static std::shared_ptr<transport> open(reactor&);   may throw: then the transport is skipped with a logged reason
template <class Tag>
struct transport_traits;

template <class Tag>
concept rpc_transport = requires(reactor& loop) {
  { transport_traits<Tag>::name } -> std::convertible_to<std::string_view>;
  { transport_traits<Tag>::priority } -> std::convertible_to<int>;
  { transport_traits<Tag>::unusable() } -> std::convertible_to<std::string>;
  { transport_traits<Tag>::open(loop) } -> std::convertible_to<std::shared_ptr<transport>>;
};

/// TCP over IPv4 and IPv6.
struct tcp {};
/// Unix domain sockets (abstract names), same machine and network namespace.
struct unix_domain {};
/// Workers of one process; messages are handed over without copying their bytes.
struct inproc {};

template <>
struct transport_traits<tcp> {
  static constexpr std::string_view name = "tcp";
  static constexpr int priority = 0;
  static std::string unusable();
  static std::shared_ptr<transport> open(reactor& loop);
};
template <>
struct transport_traits<unix_domain> {
  static constexpr std::string_view name = "unix";
  static constexpr int priority = 100;
  static std::string unusable();
  static std::shared_ptr<transport> open(reactor& loop);
};
template <>
struct transport_traits<inproc> {
  static constexpr std::string_view name = "inproc";
  static constexpr int priority = 200;
  static std::string unusable();
  static std::shared_ptr<transport> open(reactor& loop);
};

/// A transport chosen at compile time, as a value.
struct transport_factory {
  std::string_view name;
  int priority;
  std::string (*unusable)();
  std::shared_ptr<transport> (*open)(reactor&);
};

/// The transports a program is built with: `transport_list<tcp, my_transport>`.
template <class... Tags>
struct transport_list {
  static_assert((rpc_transport<Tags> && ...),
                "ferry: a transport tag needs a specialisation of ferry::transport_traits with name, priority, "
                "unusable() and open(reactor&); see ferry/transport/transport.hpp");
  static std::vector<transport_factory> factories() {
    return {transport_factory{transport_traits<Tags>::name, transport_traits<Tags>::priority,
                              &transport_traits<Tags>::unusable, &transport_traits<Tags>::open}...};
  }
};
using default_transports = transport_list<inproc, unix_domain, tcp>;

}  // namespace ferry::inline v0

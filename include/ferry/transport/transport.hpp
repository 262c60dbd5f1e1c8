#pragma once

// Transports make connections. Each is a specialisation of transport_traits.

#include <chrono>
#include <concepts>
#include <cstddef>
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

/// Bits of hello::features.
inline constexpr std::uint64_t feature_control = 1;  ///< the connection carries control frames and no calls
/// The sender has proved that it knows the secret, or the transport has authenticated it in another way. Set by the
/// transport, in the hello passed to the acceptor and in the reply that connect() reports, never by the sender of the
/// hello.
inline constexpr std::uint64_t feature_authenticated = 2;
/// The connection carries calls that must not wait behind others; a second connection carries the others.
inline constexpr std::uint64_t feature_urgent = 4;
/// The sender supports messages whose tensors are for devices, and transfer status; set by the worker, in both
/// directions.
inline constexpr std::uint64_t feature_device_tensors = 8;
/// `shm`: the sender hands over pools of GPU memory, and takes those of the other end. Set by the transport.
inline constexpr std::uint64_t feature_device_memory = 64;
/// `shm`: the sender hands over its host memory for tensors, and takes that of the other end. Set by the transport.
inline constexpr std::uint64_t feature_host_memory = 256;

/// The sender is no member of the group: it asks the worker of itself, and calls nothing (docs/protocol.md, Observers).
inline constexpr std::uint64_t feature_observer = 128;
/// The longest message that a worker takes from an observer.
inline constexpr std::uint64_t longest_observer_message = std::uint64_t{64} << 10;

/// The first message of each end of a connection (docs/protocol.md, Handshake).
struct hello {
  std::string group;  ///< the group's key; workers of different groups never connect
  std::string name;   ///< of the sender
  worker_id id;
  incarnation_id incarnation;
  std::string target;  ///< name of the worker addressed
  std::uint64_t features = 0;
  /// Of a dynamic group: the sender's position in the order of joins, from 1.
  std::uint64_t joined = 0;
};

/// The answer of the accepting end.
struct hello_reply {
  std::string name;
  worker_id id;
  incarnation_id incarnation;
  std::uint64_t features = 0;
};

struct transport_options {
  /// Address or interface name to listen on. Empty: the address from which the store was reached, else loopback.
  std::string bind = {};
  /// The address published to peers, "host" or "host:port" (NAT); empty: the address listened on.
  std::string advertise = {};
  std::uint16_t port = 0;       ///< 0: any free port
  std::uint16_t port_last = 0;  ///< with `port`: try port..port_last in turn
  /// Spin this long for a reply or the next request before sleeping; adapted from recent waits, none on one core.
  std::chrono::microseconds max_spin{50};
  /// For processors that nothing else uses: a thread that waits for a reply over `shm`, `unix` or `tcp` spins until it comes, and
  /// so many threads of the process spin without end, each on one of the connections that last brought a message. Each takes a
  /// whole processor, also while nothing is called. 0: none (docs/transports.md, Busy polling).
  int busy_poll = 0;
  wire_limits limits = {};
  /// `shm`: the size of each of the two rings of a connection, a power of two from 4 KiB to 64 MiB. The worker that
  /// connects decides. 0: 256 KiB where the processor's second-level cache has 1 MiB or more, else 128 KiB.
  std::size_t shm_ring_bytes = 0;
  /// `shm`: the two processes read large tensors from each other's GPU memory (the channel `cuda_ipc`) where both can. Not:
  /// through page-locked memory.
  bool share_device_memory = true;
  /// `shm`: tensors of shared_allocator() are read in place by the other process (the channel `shm`), and copies of other large
  /// ones are handed to it where the two take turns (docs/transports.md). Not: all go through the rings.
  bool share_host_memory = true;

  /// The other end must have the same secret for a connection to be made. Empty: no secret, and the other end must have
  /// none either. A worker sets it from its own secret. Throws errc::invalid_argument from listen() and connect() in a
  /// build without authentication.
  std::string secret = {};
  /// Listens beyond loopback although there is no secret: any process that reaches the port may connect.
  bool allow_unauthenticated = false;
  /// A handshake that takes longer is dropped, whichever end is slow. Where several workers of a process share a
  /// listening socket, this and the next one are those of the worker that opened it.
  std::chrono::milliseconds handshake_timeout{10'000};
  /// At most this many peers may be in the handshake at once. For a further one the least advanced and then oldest
  /// handshake is dropped, of the address that has the most, and of members of the group last; it gets at least 100 ms,
  /// 250 ms once bytes have arrived.
  std::size_t max_handshakes = 256;
  /// The most connections that a worker accepts on sockets and keeps open at once; a further peer is refused with
  /// errc::resource_exhausted. Peers open up to two each.
  std::size_t max_connections = 16384;
  /// How long copies between a device and the host may hold up a connection over a socket without progress. Then the
  /// message whose tensors are being copied fails with errc::device_timeout, at both ends, and the connection goes on
  /// with the next one; work that hangs on the device keeps the memory of its copies until it ends. Must be positive,
  /// and longer than the longest work that a device is given at once.
  std::chrono::milliseconds device_timeout{30'000};

  friend bool operator==(const transport_options&, const transport_options&) = default;
};

/// The accepting side of the process: decides on hellos and receives the connections. Thread-safe.
class connection_acceptor {
 public:
  virtual ~connection_acceptor() = default;
  /// Answers a hello, or throws a ferry::error whose code and text are sent to the peer.
  virtual hello_reply on_hello(const hello& from) = 0;
  /// The connection is open; start() it. Called after on_hello returned.
  virtual void on_accepted(std::shared_ptr<connection> accepted, const hello& from) noexcept = 0;
  /// Whether a peer is expected to connect from this IP address (a literal). When too many peers are in the handshake,
  /// expected ones are the last to be dropped.
  [[nodiscard]] virtual bool expects(std::string_view host) noexcept {
    (void)host;
    return false;
  }
};

/// The outcome of transport::connect: `opened` is null and `error` set, or the other way round.
struct connect_result {
  std::shared_ptr<connection> opened;
  hello_reply peer;
  std::exception_ptr error;
  /// With `error`: that worker no longer exists at this address, because the address has no listener or belongs to
  /// another process. False where that is not certain, as after a timeout.
  bool gone = false;
  /// With `error`: the connection was accepted and then closed before the handshake was complete, as by a process that
  /// is being killed.
  bool hung_up = false;
};
using connect_callback = std::function<void(connect_result)>;

/// One transport of a process, shared by all its workers. Thread-safe.
class transport {
 public:
  virtual ~transport() = default;
  /// Starts accepting (idempotent: one listening socket per process and bind address) for one worker; connections whose
  /// hello names `group` and `target` go to `acceptor`. Returns the addresses to publish, "tcp://10.0.0.2:4711", best
  /// first. `suggested_host` is the local address from which the store was reached, may be empty.
  /// Throws errc::address_in_use, errc::bad_address, errc::system_failure, and errc::authentication_required for an
  /// address that is not loopback without a secret, unless options.allow_unauthenticated.
  virtual std::vector<std::string> listen(const std::string& group, const std::string& target,
                                          const std::string& suggested_host, const transport_options& options,
                                          std::shared_ptr<connection_acceptor> acceptor) = 0;
  /// Removes the worker; after return no call of its acceptor is running or begins.
  virtual void unlisten(const std::string& group, const std::string& target) noexcept = 0;
  /// Opens a connection and performs the handshake; `callback` is called once, on a library thread, never inline.
  virtual void connect(const std::string& address, const hello& self, const transport_options& options, deadline until,
                       connect_callback callback) = 0;
  /// Whether `address` belongs to this transport.
  [[nodiscard]] virtual bool understands(std::string_view address) const noexcept = 0;
};

/// Customisation point: specialise for a tag type.
///   static constexpr std::string_view name;         unique, lower case
///   static constexpr int priority;                  higher is tried first
///   static std::string unusable();                  empty if usable on this machine, else why not
///   static std::shared_ptr<transport> open(reactor&);   may throw: then the transport is skipped with a logged reason
template <class Tag>
struct transport_traits;

namespace detail {
template <class Tag>
concept has_transport_traits = requires { sizeof(transport_traits<Tag>); };
template <class Tag>
concept has_transport_name = requires {
  { transport_traits<Tag>::name } -> std::convertible_to<std::string_view>;
};
template <class Tag>
concept has_transport_priority = requires {
  { transport_traits<Tag>::priority } -> std::convertible_to<int>;
};
template <class Tag>
concept says_if_unusable = requires {
  { transport_traits<Tag>::unusable() } -> std::same_as<std::string>;
};
template <class Tag>
concept opens_transport = requires(reactor& loop) {
  { transport_traits<Tag>::open(loop) } -> std::same_as<std::shared_ptr<transport>>;
};

/// Instantiated for a tag, reports in a sentence why it is not a transport.
template <class Tag>
struct transport_diagnosis {
  static constexpr bool there = has_transport_traits<Tag>;
  static_assert(there,
                "ferry: this type is no transport: specialise ferry::transport_traits for it, as "
                "ferry/transport/transport.hpp shows");
  static_assert(!there || has_transport_name<Tag>,
                "ferry: transport_traits of this transport lacks `name`: add static constexpr std::string_view name = "
                "\"my_transport\";");
  static_assert(!there || has_transport_priority<Tag>,
                "ferry: transport_traits of this transport lacks `priority`: add static constexpr int priority = 50; "
                "(tcp has 0, unix 100, shm 150, inproc 200; higher is tried first)");
  static_assert(
      !there || says_if_unusable<Tag>,
      "ferry: transport_traits of this transport lacks `unusable`: add static std::string unusable(); which is "
      "empty where the transport works and else says why not");
  static_assert(!there || opens_transport<Tag>,
                "ferry: transport_traits of this transport lacks `open`: add static std::shared_ptr<ferry::transport> "
                "open(ferry::reactor& loop);");
};

template <class... Tags>
consteval bool transports_differ_in_name() {
  if constexpr ((has_transport_name<Tags> && ...)) {
    const std::string_view names[]{transport_traits<Tags>::name..., {}};
    for (std::size_t i = 0; i != sizeof...(Tags); ++i) {
      for (std::size_t j = 0; j != i; ++j) {
        if (names[i] == names[j]) return false;
      }
    }
  }
  return true;
}
}  // namespace detail

/// A tag whose transport_traits is complete.
template <class Tag>
concept rpc_transport = detail::has_transport_name<Tag> && detail::has_transport_priority<Tag> &&
                        detail::says_if_unusable<Tag> && detail::opens_transport<Tag>;

/// TCP over IPv4 and IPv6.
struct tcp {};
/// Unix domain sockets (abstract names), same machine and network namespace.
struct unix_domain {};
/// Shared memory between processes of the same user, machine and network namespace; set up, watched and woken over a unix
/// domain socket.
struct shm {};
/// Workers of one process; messages are passed without copying their bytes.
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
struct transport_traits<shm> {
  static constexpr std::string_view name = "shm";
  static constexpr int priority = 150;
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
  static_assert(sizeof...(Tags) != 0,
                "ferry: a transport_list names at least one transport, for example transport_list<tcp>");
  static_assert(((sizeof(detail::transport_diagnosis<Tags>) != 0) && ...));
  static_assert(detail::transports_differ_in_name<Tags...>(),
                "ferry: two transports of a transport_list have the same name");

  static std::vector<transport_factory> factories() {
    if constexpr ((rpc_transport<Tags> && ...)) {  // else one message is enough
      return {transport_factory{transport_traits<Tags>::name, transport_traits<Tags>::priority,
                                &transport_traits<Tags>::unusable, &transport_traits<Tags>::open}...};
    } else {
      return {};
    }
  }
};
using default_transports = transport_list<inproc, shm, unix_domain, tcp>;

}  // namespace ferry::inline v0

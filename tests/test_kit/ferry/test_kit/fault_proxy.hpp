#pragma once

// A TCP proxy that is a bad network: it forwards connections to a target, and delays, throttles, splits, cuts, loses and
// damages what they carry. For tests of programs, whose workers advertise the proxy in place of their own address:
//
//   ferry::fault_proxy network("127.0.0.1:29600");
//   network.set_faults({.delay = 5ms, .split = 0.2, .reset = 0.001});
//   ferry::worker self = ferry::init_rpc({.name = "worker1",
//                                         .transports = {"tcp"},
//                                         .transport = {.advertise = network.address(), .port = 29600}});
//
// Link ferry-testing.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ferry::inline v0 {

/// Which way bytes go through a proxy: to the worker behind it, or back to the end that connected.
enum class proxy_direction : std::uint8_t { to_target = 1, to_client = 2, both = 3 };

/// What a proxy can do to a connection. The first five are what TCP networks do; programs get the right bytes, or an
/// end of the connection. The others are not: no checksum of TCP lets them pass, but a broken router may.
enum class link_fault : std::uint8_t {
  split,       ///< the next piece is of 1 to link_faults::piece bytes
  close,       ///< the rest is lost, and both ends see an orderly end of the connection in the middle of it
  reset,       ///< the same, with a reset
  stall,       ///< nothing moves until heal(); then the connection goes on. The sender meets a full buffer at some time
  black_hole,  ///< everything is accepted and lost until heal(), which resets the connection: its bytes are gone
  duplicate,   ///< a run of bytes comes twice
  reorder,     ///< two adjacent runs of bytes change places
  flip,        ///< one to three bits of a byte are flipped
};

/// The faults of one direction. A *piece* is what the proxy reads and forwards at once. Probabilities are drawn for each
/// piece, in 0..1; a connection meets at most one of close, reset, stall and black_hole for each.
struct link_faults {
  /// Every piece arrives that much later, and up to `jitter` more. Pieces of a connection keep their order.
  std::chrono::nanoseconds delay{0};
  std::chrono::nanoseconds jitter{0};
  /// Of each connection; 0: as fast as possible.
  std::uint64_t bytes_per_second = 0;
  double split = 0;
  /// The largest of the pieces that link_fault::split makes, in bytes; at least 1.
  std::size_t piece = 16;
  double close = 0;
  double reset = 0;
  double stall = 0;
  double black_hole = 0;
  double duplicate = 0;
  double reorder = 0;
  double flip = 0;
  /// The longest run that is duplicated or reordered, in bytes; at least 1.
  std::size_t run = 64;

  friend bool operator==(const link_faults&, const link_faults&) = default;
};

/// What becomes of new connections.
enum class proxy_admission : std::uint8_t {
  forward,
  drop,    ///< accepted, then reset
  ignore,  ///< accepted, and then silent: never forwarded, what they send is lost. heal() resets them
  refuse,  ///< the proxy does not listen; ferry takes that for the end of the process behind it
};

/// What a proxy did so far.
struct proxy_counters {
  std::uint64_t connections = 0;  ///< forwarded
  std::uint64_t dropped = 0;      ///< new connections that were dropped or ignored
  std::uint64_t unreachable = 0;  ///< new connections that were reset because the target did not accept them
  std::uint64_t pieces = 0;       ///< forwarded, whole or damaged
  std::uint64_t bytes = 0;        ///< written to either end
  std::uint64_t lost = 0;         ///< bytes that were accepted and never forwarded
  std::uint64_t delayed = 0;      ///< pieces
  std::uint64_t split = 0;
  std::uint64_t closed = 0;  ///< connections; so the next three
  std::uint64_t reset = 0;   ///< by a fault, reset_all(), heal() and set_admission()
  std::uint64_t stalled = 0;
  std::uint64_t black_holes = 0;
  std::uint64_t duplicated = 0;
  std::uint64_t reordered = 0;
  std::uint64_t flipped = 0;

  friend bool operator==(const proxy_counters&, const proxy_counters&) = default;
};

namespace detail {
class proxy_loop;
}

/// A forwarding TCP proxy on 127.0.0.1, with a thread of its own, until it is destroyed; then its connections are reset.
/// Every connection has its own generator of random numbers, made of the seed, the number of the connection and its
/// direction. The limits of pieces depend on time, too, so a seed gives like faults again, not the same ones.
/// Thread-safe.
class fault_proxy {
 public:
  /// `target` is "host:port", an IP literal (IPv6 in brackets); it need not listen yet. `port` is that of the proxy, 0
  /// any free one. Without a seed it is random. Throws errc::invalid_argument for a target that cannot be parsed,
  /// errc::address_in_use for a port that is taken, errc::system_failure.
  explicit fault_proxy(std::string_view target, std::uint16_t port = 0);
  fault_proxy(std::string_view target, std::uint16_t port, std::uint64_t seed);
  ~fault_proxy();
  fault_proxy(const fault_proxy&) = delete;
  fault_proxy& operator=(const fault_proxy&) = delete;

  /// "127.0.0.1:port", for transport_options::advertise.
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] std::uint64_t seed() const noexcept;

  /// Where new connections go from now on. Throws errc::invalid_argument.
  void set_target(std::string_view target);
  /// For the pieces that arrive from now on, of new and old connections. Throws errc::invalid_argument, naming the
  /// setting.
  void set_faults(const link_faults& faults, proxy_direction direction = proxy_direction::both);
  [[nodiscard]] link_faults faults(proxy_direction direction) const;
  /// For new connections; `probability` is that of drop and ignore, others are forwarded. Throws
  /// errc::invalid_argument, and errc::address_in_use if another program took the port while the proxy refused.
  void set_admission(proxy_admission admission, double probability = 1);

  /// Each of the next `times` pieces in that direction, of whichever connection, meets this fault, whatever the
  /// settings. Of a duplicate, a reorder and a flip only pieces that are long enough count: 2 bytes for a reorder.
  void inject(link_fault fault, proxy_direction direction = proxy_direction::both, std::uint64_t times = 1);
  /// All open connections and those that come meet a stall or a black hole (other faults: errc::invalid_argument) at
  /// once, until heal().
  void cut(link_fault fault, proxy_direction direction = proxy_direction::both);
  /// Resets all open connections, at both ends.
  void reset_all();
  /// Ends all faults: settings are those of a new proxy, new connections are forwarded, stalled ones go on, and those
  /// whose bytes were lost or damaged, which cannot, are reset. Throws errc::address_in_use as set_admission() does.
  void heal();

  [[nodiscard]] std::size_t open_connections() const;
  [[nodiscard]] proxy_counters counters() const;

 private:
  std::unique_ptr<detail::proxy_loop> loop_;
};

}  // namespace ferry::inline v0

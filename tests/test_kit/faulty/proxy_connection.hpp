#pragma once

// One connection through a fault_proxy: two sockets, and a lane for each direction between them.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <random>
#include <string>

#include <poll.h>

#include <ferry/test_kit/fault_proxy.hpp>

namespace ferry::inline v0::detail {

constexpr std::size_t link_fault_kinds = static_cast<std::size_t>(link_fault::flip) + 1;

/// The faults of one direction, and those that inject() still owes.
struct lane_rules {
  link_faults faults;
  std::array<std::uint64_t, link_fault_kinds> owed{};
  bool stalled = false;     ///< cut(), until healed
  bool black_hole = false;  ///< the same
};

/// Closes a socket so that the other end gets a reset.
void reset_socket(int socket) noexcept;

/// Used under the lock of its loop.
class proxy_connection {
 public:
  using time_point = std::chrono::steady_clock::time_point;

  /// Takes both sockets, which do not block. `target` is -1 for a connection that is ignored; it may be connecting.
  proxy_connection(int client, int target, bool connecting, std::uint64_t seed, std::uint64_t number);
  /// Resets both ends that are still open.
  ~proxy_connection();
  proxy_connection(const proxy_connection&) = delete;
  proxy_connection& operator=(const proxy_connection&) = delete;

  void begin_stall(proxy_direction direction) noexcept;
  void begin_black_hole(proxy_direction direction) noexcept;
  /// False: it cannot go on, since bytes were lost or damaged.
  [[nodiscard]] bool heal(time_point now);

  /// What to wait for at the client's socket and at the target's.
  [[nodiscard]] std::array<pollfd, 2> interest() const noexcept;
  /// When it has something to do without an event; time_point::max(): never.
  [[nodiscard]] time_point next_due() const noexcept;
  /// Moves what can be moved. False: it is over. `rules` are those to the target and to the client.
  [[nodiscard]] bool advance(const std::array<pollfd, 2>& events, std::array<lane_rules, 2>& rules,
                             proxy_counters& counters, time_point now);

 private:
  struct piece {
    std::string bytes;
    time_point due;
  };
  struct lane {
    std::deque<piece> pieces;
    std::size_t queued = 0;
    std::size_t sent = 0;  ///< of the first piece
    time_point last_due{};
    time_point free_at{};  ///< the throttle lets the next byte pass
    std::mt19937_64 random;
    bool stalled = false;
    bool black_hole = false;
    bool blocked = false;     ///< the socket it writes to is full
    bool input_over = false;  ///< nothing more comes
    bool output_over = false;
  };
  enum class outcome : std::uint8_t { going_on, over };

  [[nodiscard]] bool wants_input(const lane& one) const noexcept;
  outcome finish_connecting(proxy_counters& counters);
  outcome read(std::size_t index, lane_rules& rules, proxy_counters& counters, time_point now);
  outcome take(std::size_t index, std::string bytes, lane_rules& rules, proxy_counters& counters, time_point now);
  outcome write(std::size_t index, const lane_rules& rules, proxy_counters& counters, time_point now);
  /// That end of it was reset. Its other end learns of it if news still get through.
  outcome broken(std::size_t end);
  void damage(lane& one, std::string& bytes, lane_rules& rules, proxy_counters& counters);

  std::array<int, 2> sockets_;  // client, target; lane 0 reads from the first and writes to the second
  std::array<lane, 2> lanes_;
  bool connecting_;
  bool ending_ = false;    // link_fault::close: what still comes is lost
  bool impaired_ = false;  // bytes were lost or damaged
};

}  // namespace ferry::inline v0::detail

#pragma once

// What a collective of a process_group does for a number of bytes: its algorithm, from a table, and what that costs.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ferry/device/device.hpp>

namespace ferry::inline v0 {

enum class collective : std::uint8_t {
  barrier,
  broadcast,
  all_reduce,
  reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  send,
  receive,
};
std::string_view to_string(collective op) noexcept;

enum class reduce_op : std::uint8_t {
  sum,
  avg,  ///< the sum divided by the number of members; of floating-point and complex elements only
  min,  ///< min and max: not of complex elements
  max,
  prod,
};
std::string_view to_string(reduce_op op) noexcept;

/// How the members pass bytes on. n members, S bytes of the operation (plan() says of what), counted for one process.
enum class algorithm : std::uint8_t {
  /// Every member sends to every other one at once. One step. all_reduce: (n-1)S; all_gather, reduce_scatter, all_to_all:
  /// (n-1)S/n. Reductions are made by each member, in the order of ranks.
  exchange,
  /// Each member sends to the next one only, S/n bytes in each of n-1 steps. all_gather, reduce_scatter: (n-1)S/n;
  /// all_reduce takes 2(n-1) steps and 2(n-1)S/n. Each share is reduced once, beginning at a rank that follows from its
  /// number.
  ring,
  /// Binomial: ceil(log2 n) steps. The root of a broadcast sends S as often, all members of a reduce but the root once.
  tree,
  /// From one member to the next, in n-1 steps; each sends S. In pieces, whose steps overlap.
  chain,
  /// A barrier: in step k each member sends to the one 2^k ranks further. ceil(log2 n) empty messages.
  dissemination,
  /// From one member to another one.
  direct,
  /// Through memory that all members share. Each copies S at most into it, in one step; a large all_reduce takes two, and each
  /// member reduces S/n. Reductions are made in the order of ranks.
  shared,
  /// By NCCL, from device to device, behind ceil(log2 n) messages in which the members agree on it. In how many steps, and in which order
  /// it reduces, is NCCL's choice.
  nccl,
};
std::string_view to_string(algorithm which) noexcept;

/// A row of the table: the first that fits says the algorithm.
struct plan_rule {
  collective op = {};
  std::size_t up_to_bytes = std::numeric_limits<std::size_t>::max();  ///< of the operation, as for plan()
  int up_to_members = std::numeric_limits<int>::max();
  algorithm use = {};
};

/// The table for what travels in messages: where members share no memory, after a collective has failed, and for tensors on devices
/// without NCCL. It does not ask where tensors are, since members may differ in that.
inline constexpr plan_rule default_plan[] = {
    {.op = collective::barrier, .use = algorithm::dissemination},
    {.op = collective::broadcast, .up_to_bytes = std::size_t{64} << 10U, .use = algorithm::tree},
    {.op = collective::broadcast, .up_to_members = 3, .use = algorithm::tree},
    {.op = collective::broadcast, .use = algorithm::chain},
    {.op = collective::all_reduce,
     .up_to_bytes = std::size_t{256} << 10U,
     .up_to_members = 2,
     .use = algorithm::exchange},
    {.op = collective::all_reduce,
     .up_to_bytes = std::size_t{16} << 10U,
     .up_to_members = 16,
     .use = algorithm::exchange},
    {.op = collective::all_reduce, .use = algorithm::ring},
    {.op = collective::reduce, .up_to_bytes = std::size_t{64} << 10U, .use = algorithm::tree},
    {.op = collective::reduce, .up_to_members = 3, .use = algorithm::tree},
    {.op = collective::reduce, .use = algorithm::chain},
    {.op = collective::all_gather,
     .up_to_bytes = std::size_t{64} << 10U,
     .up_to_members = 16,
     .use = algorithm::exchange},
    {.op = collective::all_gather, .up_to_members = 2, .use = algorithm::exchange},
    {.op = collective::all_gather, .use = algorithm::ring},
    {.op = collective::reduce_scatter,
     .up_to_bytes = std::size_t{64} << 10U,
     .up_to_members = 16,
     .use = algorithm::exchange},
    {.op = collective::reduce_scatter, .up_to_members = 2, .use = algorithm::exchange},
    {.op = collective::reduce_scatter, .use = algorithm::ring},
    {.op = collective::all_to_all, .use = algorithm::exchange},
    {.op = collective::send, .use = algorithm::direct},
    {.op = collective::receive, .use = algorithm::direct},
};

/// Whether the library has that algorithm for that operation.
[[nodiscard]] constexpr bool has_algorithm(collective op, algorithm which) noexcept {
  switch (op) {
    case collective::barrier: return which == algorithm::dissemination || which == algorithm::shared;
    case collective::broadcast:
    case collective::reduce:
      return which == algorithm::tree || which == algorithm::chain || which == algorithm::shared ||
             which == algorithm::nccl;
    case collective::all_reduce:
    case collective::all_gather:
    case collective::reduce_scatter:
      return which == algorithm::exchange || which == algorithm::ring || which == algorithm::shared ||
             which == algorithm::nccl;
    case collective::all_to_all:
      return which == algorithm::exchange || which == algorithm::shared || which == algorithm::nccl;
    case collective::send:
    case collective::receive: return which == algorithm::direct;
  }
  return false;
}

namespace detail {
/// The number of the first rule for it; `table.size()` if there is none. (g++ takes no comparison of a rule's address for a
/// constant when it compiles for the undefined-behaviour sanitizer.)
constexpr std::size_t find_rule(std::span<const plan_rule> table, collective op, std::size_t bytes,
                                int members) noexcept {
  std::size_t at = 0;
  for (; at != table.size(); ++at) {
    const plan_rule& each = table[at];
    if (each.op == op && bytes <= each.up_to_bytes && members <= each.up_to_members) break;
  }
  return at;
}
constexpr bool covers_everything(std::span<const plan_rule> table) noexcept {
  for (int op = 0; op <= static_cast<int>(collective::receive); ++op) {
    if (find_rule(table, static_cast<collective>(op), std::numeric_limits<std::size_t>::max(),
                  std::numeric_limits<int>::max()) == table.size()) {
      return false;
    }
  }
  for (const plan_rule& each : table) {
    if (!has_algorithm(each.op, each.use)) return false;
  }
  return true;
}
static_assert(covers_everything(default_plan));
}  // namespace detail

/// What a collective will do.
struct group_plan {
  collective op = {};
  std::size_t bytes = 0;
  int members = 0;
  algorithm use = {};
  int steps = 0;                      ///< messages that must follow one another, for one piece
  std::size_t bytes_per_process = 0;  ///< the most that one member sends
  std::size_t chunk = 0;              ///< the bytes of a message at most
  std::size_t pieces = 0;             ///< parts that travel independently of each other, `window` of them at once
  std::size_t window = 0;
  /// What busbw multiplies S / time with, as nccl-tests define it: 2(n-1)/n for all_reduce, (n-1)/n for all_gather,
  /// reduce_scatter and all_to_all, 1 for the others.
  double busbw_factor = 0;
  /// Why not through shared memory; empty: it is.
  std::string not_shared = {};
  /// Not because of how the members reach each other, or what was asked for: it was tried, or was so earlier.
  bool shared_failed = false;
  device_kind memory = device_kind::cpu;  ///< of the tensors of this member
  /// Of tensors on a device: why not by NCCL; empty: it is, if all members can.
  std::string not_nccl = {};

  friend bool operator==(const group_plan&, const group_plan&) = default;
};
/// Of tensors on devices "nccl", "staged ring", and so on.
/// "all_reduce of 1048576 bytes among 4: ring, 6 steps, 1572864 bytes per process, 1 piece of messages up to 262144 bytes"
std::string to_string(const group_plan& plan);

}  // namespace ferry::inline v0

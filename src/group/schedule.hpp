#pragma once

// What one member does in a collective: the steps for one piece of the tensors, by algorithm. Pure: no I/O, no memory of
// tensors.

#include <cstdint>
#include <vector>

#include <ferry/group/plan.hpp>

namespace ferry::inline v0::detail {

struct group_step {
  enum class what : std::uint8_t {
    send,            ///< `part` to `peer`
    receive,         ///< from `peer` into `part`
    receive_reduce,  ///< from `peer`: part = received (op) part
    copy,            ///< part = other
    reduce,          ///< part = part (op) other
    scale,           ///< part = part / n, for averages only
    fetch,           ///< of tensors on devices, first: the elements of the piece come to the CPU
    store,           ///< the same, last: its results go to the device
  };
  what kind = {};
  int peer = -1;
  int part = -1;  ///< -1: no bytes
  int other = -1;
  std::uint32_t tag = 0;  ///< tells messages from one member to another one in one piece apart

  friend bool operator==(const group_step&, const group_step&) = default;
};

/// The parts that the steps name, as the buffers of an operation must have them.
///   all_reduce      exchange: 0 the tensor, 1 scratch; ring: 0 .. n-1 its shares
///   broadcast       0 the tensor
///   reduce          0 what is reduced in place: the tensor of the root, scratch with a copy of it elsewhere
///   all_gather      0 .. n-1 the result; that of this member is filled
///   reduce_scatter  0 .. n-1 the shares of the input (ring: of a copy of it), n the result
///   all_to_all      0 .. n-1 the shares of the input, n .. 2n-1 those of the result
///   send, receive   0 the tensor
struct schedule_of {
  collective op = {};
  algorithm use = {};
  int rank = 0;
  int members = 0;
  int root = 0;  ///< of broadcast and reduce; the other member of send and receive
};
std::vector<group_step> make_schedule(const schedule_of& what);

}  // namespace ferry::inline v0::detail

#pragma once

// Messages between the members of a process_group. Each step of a collective that sends is one call of the receiver, which
// answers when the message has reached the piece that it belongs to: that bounds what a receiver that is late keeps.

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include <ferry/group/plan.hpp>
#include <ferry/rpc/future.hpp>
#include <ferry/tensor/dtype.hpp>
#include <ferry/tensor/tensor.hpp>

namespace ferry::inline v0::detail {

/// Which collective of a group, as every member that takes part counts.
struct collective_key {
  static constexpr std::int32_t all = -1;  ///< the channel of collectives; that of a pair of members: from * n + to
  std::int32_t channel = all;
  std::uint64_t sequence = 0;

  friend auto operator<=>(const collective_key&, const collective_key&) = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(channel, sequence);
  }
};

/// What the members must agree on.
struct collective_signature {
  collective op = {};  ///< send at both ends
  reduce_op how = {};
  algorithm use = {};
  dtype type = {};
  std::int32_t root = -1;
  /// Zero, or what it is for (collective_purpose.hpp): passes that make them in different orders differ.
  std::uint64_t purpose = 0;
  std::vector<std::int64_t> shape;

  friend bool operator==(const collective_signature&, const collective_signature&) = default;
  template <class Archive>
  void serialize(Archive& archive) {
    archive(op, how, use, type, root, purpose, shape);
  }
};

struct group_message {
  std::uint64_t group = 0;
  std::int32_t from = 0;  ///< rank
  collective_key key;
  std::uint32_t piece = 0;
  std::uint32_t tag = 0;
  collective_signature signature;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(group, from, key, piece, tag, signature);
  }
};

/// A collective has ended with an error.
struct group_abort {
  std::uint64_t group = 0;
  std::int32_t from = 0;
  collective_key key;
  std::uint32_t error = 0;  ///< an errc
  std::string text;
  std::int32_t lost = -1;  ///< the rank of a member that is lost, or -1

  template <class Archive>
  void serialize(Archive& archive) {
    archive(group, from, key, error, text, lost);
  }
};

/// What a member has done about a collective.
struct group_inquiry {
  std::uint64_t group = 0;
  std::int32_t from = 0;
  collective_key key;

  template <class Archive>
  void serialize(Archive& archive) {
    archive(group, from, key);
  }
};

// The methods. All throw errc::invalid_argument for a sender that is not that member, and for a group that this worker does not
// have (any more), apart from what is said otherwise.
/// For a collective of such a group that has failed here: the error of that.
future<void> serve_group_message(const group_message& message, const tensor& bytes);
/// Nothing to do for such a group: both ends have come to an error by themselves.
void serve_group_abort(const group_abort& what);
/// What this member calls, as text; empty: it has not called it.
std::string serve_group_inquiry(const group_inquiry& what);
/// Sent to a member that sleeps: another one has gone on in the shared segment.
void serve_group_wake(std::uint64_t group, std::int32_t from);
void serve_group_hello(std::uint64_t group, std::int32_t from);

}  // namespace ferry::inline v0::detail

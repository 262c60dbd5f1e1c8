#pragma once

// The extension records of messages that calls and references add, as docs/protocol.md specifies them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ferry/backend/device_map.hpp>
#include <ferry/wire/message.hpp>

#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

/// An object that a call has to itself, and, where only the calls of one worker wait for each other, whose.
struct held_turn {
  object_id object;
  worker_id lane;
  std::uint64_t number = 0;  ///< tells the turns at one object apart; counts from 1
  /// The call that has it waits for the request that says so, directly or through others, and does nothing else meanwhile:
  /// each of them blocks the thread of its handler. Otherwise it may wait.
  bool certain = false;
  friend constexpr bool operator==(const held_turn&, const held_turn&) noexcept = default;
};

/// What a call and those that wait for it have to themselves.
struct call_chain {
  std::vector<held_turn> turns;  ///< of those who wait for it, the outermost first
  held_turn own;                 ///< none: its number is 0
  [[nodiscard]] bool empty() const noexcept { return turns.empty() && own.number == 0; }
};

/// What the records of one message say.
struct reference_records {
  std::optional<object_id> object;    ///< that the request is for
  std::optional<object_id> creation;  ///< that it makes
  incarnation_id from;                ///< the sender's life, of `references`
  std::vector<handed_reference> references;
  call_chain chain;
  std::optional<device_map> way_back;  ///< of the tensors of the answer, where the request has its own placement
};

void add_object_record(outgoing_message& message, const object_id* object, const object_id* creation);
/// `waits`: whoever has the turns waits for this request, as far as that is certain.
void add_chain_record(outgoing_message& message, const call_chain& chain, bool waits);
/// `placement`: of the request.
void add_placement_record(outgoing_message& message, const device_map& placement);
/// After the payload.
void insert_references_record(outgoing_message& message, incarnation_id from,
                              std::span<const handed_reference> references);

/// Reads all records of a message. Throws errc::truncated, errc::malformed, and errc::unknown_extension for one that is
/// critical and of another type.
reference_records read_records(std::span<const std::byte> extensions);

}  // namespace ferry::inline v0::detail

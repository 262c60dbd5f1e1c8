#pragma once

// The extension records of references and objects, as docs/protocol.md specifies them.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ferry/wire/message.hpp>

#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

// Types of extension records (ferry's range, wire/extension.hpp).
inline constexpr std::uint16_t object_record = 1;      // requests: the object it is for, and the one it makes
inline constexpr std::uint16_t references_record = 2;  // the references in the payload
inline constexpr std::uint16_t call_chain_record = 3;  // requests: the turns that the handlers waiting for it hold

/// An object on which a call holds the turn; `lane` is the caller whose calls alone are serialised, if the object is
/// `ordered`.
struct held_turn {
  object_id object;
  worker_id lane;
  std::uint64_t number = 0;  ///< distinguishes the turns on one object; counts from 1
  /// True: the call that holds it certainly waits for the request that carries this record, directly or through others,
  /// because each of them blocks its handler's thread. False: it may wait.
  bool certain = false;
  friend constexpr bool operator==(const held_turn&, const held_turn&) noexcept = default;
};

/// The turns that a call and the calls waiting for it hold.
struct call_chain {
  std::vector<held_turn> turns;  ///< of the calls that wait for it, the outermost first
  held_turn own;                 ///< none: its number is 0
  [[nodiscard]] bool empty() const noexcept { return turns.empty() && own.number == 0; }
};

/// The decoded records of one message.
struct reference_records {
  std::optional<object_id> object;    ///< the object that the request is for
  std::optional<object_id> creation;  ///< the object that it makes
  incarnation_id from;                ///< the sender's incarnation, from the references record
  std::vector<handed_reference> references;
  call_chain chain;
};

// Each adds one record to a message whose payload is complete.
void add_object_record(outgoing_message& message, const object_id* object, const object_id* creation);
/// `waits`: the calls that hold the turns wait for this request, where `certain` is set.
void add_chain_record(outgoing_message& message, const call_chain& chain, bool waits);
void add_references_record(outgoing_message& message, incarnation_id from,
                           std::span<const handed_reference> references);

/// Reads these records of a message, and skips all others. Throws errc::truncated, errc::malformed.
reference_records read_records(std::span<const std::byte> extensions);

}  // namespace ferry::inline v0::detail

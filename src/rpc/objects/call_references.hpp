#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/transport/reactor.hpp>

#include "../references/protocol/reference_protocol.hpp"
#include "../references/protocol/reference_records.hpp"
#include "object_turns.hpp"

namespace ferry::inline v0::detail {

/// Reference state of a request that is being served: the object that it is for, the object that it makes, and what
/// must arrive before its handler may begin.
struct call_references {
  explicit call_references(incoming_call& call) : turn(call) {}

  ref_ptr<owned_object> target;  ///< the object that the request is for
  object_id target_id;
  bool awaits = false;             ///< the table counts it among the calls that wait for the target to be made
  ref_ptr<owned_object> creation;  ///< the object that it makes
  object_id creation_id;
  ref_ptr<owned_object> made_before;  ///< made by an earlier copy of this call: this copy is only answered
  call_chain chain;
  std::optional<device_map> way_back;  ///< inverse of the request's own placement, for the answer
  std::exception_ptr refusal;          ///< why the handler must not run
  std::exception_ptr late;             ///< the same, set at its deadline
  object_turns::place turn;            ///< in the target's turns
  bool takes_no_turn = false;          ///< it only queries the object
  bool given_up = false;               ///< it was to make an object, but its caller gave it up, or it is a duplicate
  std::atomic<bool> answered{false};
  std::atomic<bool> begun{false};  ///< or refused
  /// That it waits, and that its caller has given it up: the thread that finds the other one set ends the wait.
  static constexpr unsigned char waits_bit = 1;
  static constexpr unsigned char given_up_bit = 2;
  std::atomic<unsigned char> wait_ends{0};
  timer_id limit = timer_id::none;
  work* at_limit = nullptr;
  std::atomic<int> missing{1};  ///< outstanding confirmations, plus one for admit() itself
  [[nodiscard]] std::string what_is_missing() const {
    if (begun.load()) return {};
    return made_before ? "an earlier copy of this call, which makes its object"
                       : "the owners of references among its arguments";
  }

  // Used by turn_waits.
  bool makes_behind_turn = false;
  bool in_waits = false;
  incoming_call* previous_wait = nullptr;
  incoming_call* next_wait = nullptr;
};

}  // namespace ferry::inline v0::detail

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

/// What a request that is being served has to do with references: which object it is for, which it makes, what it waits for
/// before its handler may begin.
struct call_references {
  explicit call_references(incoming_call& call) : turn(call) {}

  ref_ptr<owned_object> target;  ///< that the request is for
  object_id target_id;
  ref_ptr<owned_object> creation;  ///< that it makes
  object_id creation_id;
  ref_ptr<owned_object> made_before;  ///< by an earlier arrival of this call: it is only answered
  call_chain chain;
  std::optional<device_map> way_back;  ///< of its own placement, for the answer
  std::exception_ptr refusal;          ///< why the handler must not run
  std::exception_ptr late;             ///< the same, because its time is over
  object_turns::place turn;            ///< at the target
  bool takes_no_turn = false;          ///< it only asks for the object
  bool given_up = false;               ///< it was to make an object, but its caller has given that up, or it came twice
  std::atomic<bool> answered{false};
  std::atomic<bool> begun{false};  ///< or told that it must not
  timer_id limit = timer_id::none;
  work* at_limit = nullptr;
  std::atomic<int> missing{1};  ///< confirmations, and one for who counts them
  [[nodiscard]] std::string what_is_missing() const {
    if (begun.load()) return {};
    return made_before ? "the call that makes its object already" : "the owners of references among its arguments";
  }

  // Of turn_waits.
  bool makes_behind_turn = false;
  bool in_waits = false;
  incoming_call* previous_wait = nullptr;
  incoming_call* next_wait = nullptr;
};

}  // namespace ferry::inline v0::detail

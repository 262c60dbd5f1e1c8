#pragma once

#include <atomic>
#include <exception>
#include <string>

#include <ferry/rpc/detail/owned_object.hpp>
#include <ferry/rpc/interceptor.hpp>

#include "../references/protocol/reference_protocol.hpp"
#include "../references/protocol/reference_records.hpp"
#include "object_turns.hpp"

namespace ferry::inline v0::detail {

/// What a request that names objects keeps at their owner: the object that it is for, the object that it makes, and its
/// place among the calls on the former.
struct object_visit : callee_hooks {
  explicit object_visit(incoming_call& of) : call(of), turn(*this) {}

  incoming_call& call;
  ref_ptr<owned_object> target;  ///< the object that the request is for
  object_id target_id;
  ref_ptr<owned_object> creation;  ///< the object that it makes
  call_chain chain;
  std::exception_ptr refusal;  ///< why the handler must not run
  object_turns::place turn;    ///< in the target's turns
  bool takes_no_turn = false;  ///< it only queries the object

  // Used by turn_waits.
  bool makes_behind_turn = false;
  bool in_waits = false;
  object_visit* previous_wait = nullptr;
  object_visit* next_wait = nullptr;

  /// "object 3@1 (model)", of the target.
  [[nodiscard]] std::string describe_target() const;
};

}  // namespace ferry::inline v0::detail

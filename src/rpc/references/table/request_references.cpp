#include "request_references.hpp"

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>

#include "../../../base/peer_log.hpp"
#include "../../objects/object_uses.hpp"
#include "../../worker/worker_core.hpp"
#include "reference_table.hpp"

namespace ferry::inline v0::detail {
namespace {

// Why the handler did not run, for those who use the object later: only the caller of the request knows what it was for.
std::exception_ptr with_call(const incoming_call& call, const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const error& e) {
    return make_error(e.kind(), fmt::format("{}: no object was made: {}", call.describe(), e.message()));
  } catch (...) {
    return why;
  }
}

}  // namespace

request_references* references_of_request(const incoming_call* call) noexcept {
  return call ? static_cast<request_references*>(call->find_hooks(&request_references::key_of)) : nullptr;
}

void request_references::before_handler(handler_start& start) {
  if (refusal) std::rethrow_exception(refusal);
  if (late) std::rethrow_exception(late);
  if (made_before) return start.skip_handler();
  if (target && !takes_no_turn) target->use_here();
}

// An exception of the function is recorded as the state of the object: its creation has been attempted.
void request_references::handler_ended(handler_result& result) {
  if (!result.error()) return;
  if (given_up) result.expect_error();
  if (!creation) return;
  creation->fail(result.ran() ? result.error() : with_call(call, result.error()));
  if (result.ran()) result.answer_empty();
}

// Whatever waits for the nested call waits at the objects at which this one holds its turn, too.
void request_references::on_nested_request(outgoing_request& request) {
  if (!request.awaited()) return;
  if (const call_chain* turns = held_turns()) add_chain_record(request.message(), *turns, request.blocks_handler());
}

void request_references::ended() noexcept { table->done(*this); }

void request_references::stopped() noexcept {
  log_given_up();
  table->give_up(*this, make_error(errc::call_cancelled, "the caller gave the call up while it waited to begin"));
}

void request_references::refused(const std::exception_ptr& why) noexcept { table->give_up(*this, why); }

// A waiting handler gives up its turn at the object, if the object is reentrant.
void request_references::waiting(int change) noexcept {
  if (!gives_turn_away()) return;
  if (change > 0) {
    pause_use(call, *target);
    target->turns().pause(*this);
  } else {
    target->turns().resume(*this);
    resume_use(call, *target);
  }
}

void request_references::suspended() noexcept {
  if (!gives_turn_away()) return;
  pause_use(call, *target);
  target->turns().pause(*this);
}

bool request_references::gives_turn_away() const noexcept {
  return turn.running && turn.in_lane && target->value_made().policy().reentrant;
}

void request_references::log_given_up() const noexcept {
  try {
    std::string what = target ? target->turns().describe_wait(*this) : "";
    if (what.empty() && !begun.load()) {
      what = made_before ? "an earlier copy of this call, which makes its object"
                         : "the owners of references among its arguments";
    }
    if (what.empty()) return;
    const auto waited = clock::now() - call.arrived();
    const deadline until = static_cast<const call_context&>(call).deadline();
    const bool in_time = until.is_never() || until.remaining() > waited / 4;  // then it was cancelled
    log_about(call.caller(), in_time ? log_level::info : log_level::warning, [&] {
      return fmt::format("{}: {} was given up by its caller after {:.3g} s, in which it waited for {}",
                         to_string(call.worker()->agent_unchecked().self()), call.describe_plainly(),
                         in_seconds(waited), what);
    });
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): only a log line is lost
  }
}

}  // namespace ferry::inline v0::detail

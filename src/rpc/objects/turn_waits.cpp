#include "turn_waits.hpp"

#include <algorithm>
#include <new>
#include <string>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "call_references.hpp"

namespace ferry::inline v0::detail {
namespace {

// Whether the call that has that turn certainly waits for `call`.
bool awaited_by(const call_references& call, const held_turn& turn) {
  const auto is_it = [&](const held_turn& each) {
    return each.certain && each.object == turn.object && each.lane == turn.lane && each.number == turn.number;
  };
  return std::any_of(call.chain.turns.begin(), call.chain.turns.end(), is_it);
}

}  // namespace

void turn_waits::add(incoming_call& call) noexcept {
  call_references& own = *call.references_;
  const std::vector<held_turn>& turns = own.chain.turns;
  if (std::none_of(turns.begin(), turns.end(), [](const held_turn& each) { return each.certain; })) return;
  const std::lock_guard lock(mutex_);
  own.in_waits = true;
  own.next_wait = first_;
  if (first_) first_->references_->previous_wait = &call;
  first_ = &call;
  try {
    (void)refuse_if_in_cycle(call);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it waits until its deadline
  }
}

void turn_waits::add_maker(incoming_call& call) noexcept {
  const std::lock_guard lock(mutex_);
  call.references_->makes_behind_turn = true;
  call.references_->creation->turns().set_maker(&call);
  try {
    for (incoming_call* each = first_; each; each = each->references_->next_wait) (void)refuse_if_in_cycle(*each);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): as above
  }
}

void turn_waits::remove(incoming_call& call) noexcept {
  call_references& own = *call.references_;
  if (!own.in_waits && !own.makes_behind_turn) return;
  const std::lock_guard lock(mutex_);
  if (own.makes_behind_turn) own.creation->turns().set_maker(nullptr);
  own.makes_behind_turn = false;
  if (!own.in_waits) return;
  (own.previous_wait ? own.previous_wait->references_->next_wait : first_) = own.next_wait;
  if (own.next_wait) own.next_wait->references_->previous_wait = own.previous_wait;
  own.in_waits = false;
}

// The turn that must end before the call can end; follows calls that have yet to make the call's object.
object_turns::obstacle turn_waits::obstacle_of(const incoming_call& call, std::string* in_words) const {
  const incoming_call* at = &call;
  for (;;) {
    const object_turns& turns = at->references_->target->turns();
    const object_turns::obstacle found = turns.obstacle_of(*at);
    if (in_words && !found.begun) *in_words += (at == &call ? "" : ", which waits for ") + turns.describe_wait(*at);
    if (!found.maker) return found;
    if (in_words) *in_words += " by " + found.maker->describe_plainly();
    at = found.maker;
  }
}

// With the mutex held.
bool turn_waits::refuse_if_in_cycle(incoming_call& call) const {
  struct step {
    incoming_call* call;
    std::size_t from;
  };
  std::vector<step> steps{{&call, 0}};
  for (std::size_t i = 0; i != steps.size(); ++i) {
    const object_turns::obstacle found = obstacle_of(*steps[i].call, nullptr);
    if (i == 0 && found.begun) return false;
    if (found.turn.number == 0) continue;
    if (!awaited_by(*call.references_, found.turn)) {
      for (incoming_call* each = first_; each; each = each->references_->next_wait) {
        const auto is_it = [&](const step& known) { return known.call == each; };
        if (awaited_by(*each->references_, found.turn) && !each->stop_requested() &&
            std::none_of(steps.begin(), steps.end(), is_it)) {
          steps.push_back({each, i});
        }
      }
      continue;
    }
    std::vector<const incoming_call*> way;
    for (std::size_t at = i; at != 0; at = steps[at].from) way.push_back(steps[at].call);
    std::string text = "it would wait for ";
    (void)obstacle_of(call, &text);
    for (auto each = way.rbegin(); each != way.rend(); ++each) {
      text += fmt::format(", which waits for {}, which waits for ", (*each)->describe_plainly());
      (void)obstacle_of(**each, &text);
    }
    text += fmt::format(", which waits for this call; {}", deadlock_advice);
    return call.references_->target->turns().refuse(call, make_error(errc::would_deadlock, text));
  }
  return false;
}

}  // namespace ferry::inline v0::detail

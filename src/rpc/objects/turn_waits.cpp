#include "turn_waits.hpp"

#include <algorithm>
#include <new>
#include <string>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/base/log.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "object_visit.hpp"

namespace ferry::inline v0::detail {
namespace {

// Whether the call that has that turn certainly waits for `call`.
bool awaited_by(const object_visit& visit, const held_turn& turn) {
  const auto is_it = [&](const held_turn& each) {
    return each.certain && each.object == turn.object && each.lane == turn.lane && each.number == turn.number;
  };
  return std::any_of(visit.chain.turns.begin(), visit.chain.turns.end(), is_it);
}

}  // namespace

void turn_waits::add(object_visit& visit) noexcept {
  const std::vector<held_turn>& turns = visit.chain.turns;
  if (std::none_of(turns.begin(), turns.end(), [](const held_turn& each) { return each.certain; })) return;
  const std::lock_guard lock(mutex_);
  visit.in_waits = true;
  visit.next_wait = first_;
  if (first_) first_->previous_wait = &visit;
  first_ = &visit;
  try {
    (void)refuse_if_in_cycle(visit);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): it waits until its deadline
  }
}

void turn_waits::add_maker(object_visit& visit) noexcept {
  const std::lock_guard lock(mutex_);
  visit.makes_behind_turn = true;
  visit.creation->turns().set_maker(&visit);
  try {
    for (object_visit* each = first_; each; each = each->next_wait) (void)refuse_if_in_cycle(*each);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): as above
  }
}

void turn_waits::remove(object_visit& visit) noexcept {
  if (!visit.in_waits && !visit.makes_behind_turn) return;
  const std::lock_guard lock(mutex_);
  if (visit.makes_behind_turn) visit.creation->turns().set_maker(nullptr);
  visit.makes_behind_turn = false;
  if (!visit.in_waits) return;
  (visit.previous_wait ? visit.previous_wait->next_wait : first_) = visit.next_wait;
  if (visit.next_wait) visit.next_wait->previous_wait = visit.previous_wait;
  visit.in_waits = false;
}

// The turn that must end before the call can end; follows calls that have yet to make the call's object.
object_turns::obstacle turn_waits::obstacle_of(const object_visit& visit, std::string* in_words) const {
  const object_visit* at = &visit;
  for (;;) {
    const object_turns& turns = at->target->turns();
    const object_turns::obstacle found = turns.obstacle_of(*at);
    if (in_words && !found.begun) *in_words += (at == &visit ? "" : ", which waits for ") + turns.describe_wait(*at);
    if (!found.maker) return found;
    if (in_words) *in_words += " by " + found.maker->call.describe_plainly();
    at = found.maker;
  }
}

// With the mutex held.
bool turn_waits::refuse_if_in_cycle(object_visit& visit) const {
  struct step {
    object_visit* visit;
    std::size_t from;
  };
  std::vector<step> steps{{&visit, 0}};
  for (std::size_t i = 0; i != steps.size(); ++i) {
    const object_turns::obstacle found = obstacle_of(*steps[i].visit, nullptr);
    if (i == 0 && found.begun) return false;
    if (found.turn.number == 0) continue;
    if (!awaited_by(visit, found.turn)) {
      for (object_visit* each = first_; each; each = each->next_wait) {
        const auto is_it = [&](const step& known) { return known.visit == each; };
        if (awaited_by(*each, found.turn) && !each->call.stop_requested() &&
            std::none_of(steps.begin(), steps.end(), is_it)) {
          steps.push_back({each, i});
        }
      }
      continue;
    }
    std::vector<const object_visit*> way;
    for (std::size_t at = i; at != 0; at = steps[at].from) way.push_back(steps[at].visit);
    std::string text = "it would wait for ";
    (void)obstacle_of(visit, &text);
    for (auto each = way.rbegin(); each != way.rend(); ++each) {
      text += fmt::format(", which waits for {}, which waits for ", (*each)->call.describe_plainly());
      (void)obstacle_of(**each, &text);
    }
    text += fmt::format(", which waits for this call; {}", deadlock_advice);
    return visit.target->turns().refuse(visit, make_error(errc::would_deadlock, text));
  }
  return false;
}

}  // namespace ferry::inline v0::detail

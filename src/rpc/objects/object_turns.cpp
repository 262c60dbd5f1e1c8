#include "object_turns.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "../worker/worker_core.hpp"
#include "object_uses.hpp"
#include "object_visit.hpp"
#include "turn_waits.hpp"

namespace ferry::inline v0::detail {
namespace {

constexpr peer_incarnation lane_of_all{worker_id{-1}, {}};

bool needs_turn(const execution_policy& policy) noexcept { return policy.how != execution::concurrent; }

}  // namespace

// ---------------------------------------------------------------- lists, with the mutex held

void object_turns::add(call_queue& to, object_visit& visit) noexcept {
  place& own = visit.turn;
  own.previous = to.last;
  own.next = nullptr;
  (to.last ? to.last->turn.next : to.first) = &visit;
  to.last = &visit;
}

void object_turns::remove(call_queue& from, object_visit& visit) noexcept {
  place& own = visit.turn;
  (own.previous ? own.previous->turn.next : from.first) = own.next;
  (own.next ? own.next->turn.previous : from.last) = own.previous;
  own.previous = own.next = nullptr;
}

void object_turns::begun::add(object_visit& visit) noexcept {
  visit.turn.next_launched = nullptr;
  (last_ ? last_->turn.next_launched : first_) = &visit;
  last_ = &visit;
}

// Without the mutex. A launched call may end and be destroyed at once.
void object_turns::begun::launch() noexcept {
  while (object_visit* visit = first_) {
    place& own = visit->turn;
    first_ = own.next_launched;
    if (!own.step) {
      visit->call.release();
      continue;
    }
    // One at a time: the next step gets the turn once this one has run, or waits.
    own.item.visit = visit;
    own.item.run = [](work* self) noexcept {
      object_visit& of = *static_cast<place::step_item*>(self)->visit;
      const context_ptr keep = context_ptr::share(&of.call);  // the step, which keeps the call alive, ends soon
      work* const step = std::exchange(of.turn.step, nullptr);
      resume_use(of.call, *of.target);
      step->run(step);
      pause_use(of.call, *of.target);
      of.target->turns().pause(of);
    };
    visit->call.worker()->post(&own.item);
  }
}

// ---------------------------------------------------------------- places

// With the mutex held, once the object has been made. Throws only where enter() calls it.
void object_turns::take_place(object_visit& visit) {
  place& at = visit.turn;
  if (!needs_turn(policy_) || visit.takes_no_turn) {
    at.passes = true;
    return;
  }
  const bool ordered = policy_.how == execution::ordered;
  at.lane_key = ordered ? peer_incarnation{visit.call.caller(), visit.call.sender_incarnation()} : lane_of_all;
  lane* in = &all_;
  if (ordered) {
    auto found = lanes_.find(at.lane_key);
    if (found == lanes_.end()) {
      if (!at.spare) {
        found = lanes_.try_emplace(at.lane_key).first;
      } else {
        at.spare.key() = at.lane_key;
        found = lanes_.insert(std::move(at.spare)).position;
      }
    }
    in = &found->second;
  }
  if (!policy_.reentrant) {
    // A chain has only turns of calls that wait: one-way calls cannot deadlock.
    const auto holds = [&](const held_turn& turn) {
      return in->running && turn.object == visit.target_id && turn.lane == at.lane_key.id &&
             turn.number == in->running->turn.number;
    };
    if (std::any_of(visit.chain.turns.begin(), visit.chain.turns.end(), holds)) {
      at.passes = true;
      visit.refusal =
          make_error(errc::would_deadlock,
                     fmt::format("it would wait for its turn at {}, held by {}, which waits for this call; {}",
                                 visit.describe_target(), in->running->call.describe_plainly(), deadlock_advice));
      return;
    }
    at.number = ++numbers_;
    visit.chain.own = {visit.target_id, at.lane_key.id, at.number, true};
  }
  at.in_lane = true;
  ++in->calls;
  add(in->waiting, visit);
}

void object_turns::enter(object_visit& visit) {
  place& own = visit.turn;
  const std::lock_guard lock(mutex_);
  if (made_) return take_place(visit);
  lane_map one;
  one.try_emplace(lane_of_all);
  own.spare = one.extract(one.begin());
  own.early = true;
  add(early_, visit);
}

void object_turns::ready(object_visit& visit) noexcept {
  begun now;
  {
    const std::lock_guard lock(mutex_);
    place& own = visit.turn;
    own.ready = true;
    if (own.passes) {
      now.add(visit);
    } else if (lane* in = find(own)) {
      advance(*in, now);
    }
  }
  now.launch();
}

// With the mutex held: withdraws a call that has not begun. Calls queued behind it may be ready although it was not.
void object_turns::withdraw(object_visit& visit, begun& now) noexcept {
  place& own = visit.turn;
  if (own.early) {
    remove(early_, visit);
    own.early = false;
  } else if (lane* in = find(own)) {
    remove(in->waiting, visit);
    own.in_lane = false;
    advance(*in, now);
    leave_lane(own);
  }
  own.passes = true;
}

bool object_turns::refuse(object_visit& visit, std::exception_ptr why) noexcept {
  begun now;
  {
    const std::lock_guard lock(mutex_);
    place& own = visit.turn;
    if (own.running || own.left || own.passes) return false;
    withdraw(visit, now);
    visit.refusal = std::move(why);
    if (own.ready) now.add(visit);
  }
  now.launch();
  return true;
}

void object_turns::made(execution_policy policy) noexcept {
  begun now;
  {
    const std::lock_guard lock(mutex_);
    made_ = true;
    policy_ = policy;
    while (object_visit* visit = early_.first) {
      remove(early_, *visit);
      place& own = visit->turn;
      own.early = false;
      take_place(*visit);  // no call has the turn yet, so none is refused
      if (own.ready && own.passes) now.add(*visit);
    }
    advance(all_, now);
    for (auto& [key, each] : lanes_) advance(each, now);
  }
  now.launch();
}

// With the mutex held. Null: the call is in no lane.
object_turns::lane* object_turns::find(const place& of) noexcept {
  if (!of.in_lane) return nullptr;
  if (of.lane_key == lane_of_all) return &all_;
  const auto found = lanes_.find(of.lane_key);
  return found == lanes_.end() ? nullptr : &found->second;
}

// With the mutex held: the call that has the turn in a place's lane; null: none.
const object_visit* object_turns::running_in(const place& of) const noexcept {
  if (of.lane_key == lane_of_all) return all_.running;
  const auto found = lanes_.find(of.lane_key);
  return found == lanes_.end() ? nullptr : found->second.running;
}

void object_turns::leave_lane(const place& of) noexcept {
  if (of.lane_key == lane_of_all) {
    --all_.calls;
    return;
  }
  const auto found = lanes_.find(of.lane_key);
  if (--found->second.calls == 0) lanes_.erase(found);
}

// With the mutex held: gives the turn to the next call unless one has it.
void object_turns::advance(lane& of, begun& now) noexcept {
  if (of.running) return;
  if (returning_call* next = of.first_returning) {
    of.first_returning = next->next;
    if (!of.first_returning) of.last_returning = nullptr;
    of.running = next->visit;
    next->admitted = true;
    admitted_.notify_all();
    return;
  }
  // Steps take precedence over calls that have not begun.
  if (object_visit* next = of.first_stepping) {
    of.running = next;
    take_step(of, *next);
    now.add(*next);
    return;
  }
  object_visit* next = of.waiting.first;
  if (policy_.how == execution::exclusive) {
    while (next && !next->turn.ready) next = next->turn.next;
  }
  if (!next || !next->turn.ready) return;
  remove(of.waiting, *next);
  of.running = next;
  place& own = next->turn;
  own.running = true;
  if (policy_.reentrant) next->call.run_on(std::shared_ptr<executor>(next->call.worker(), &own.threads));
  now.add(*next);
}

// With the mutex held: takes the oldest step of the first call that has one; if that call has more, it is queued again.
void object_turns::take_step(lane& of, object_visit& visit) noexcept {
  place& own = visit.turn;
  of.first_stepping = std::exchange(own.next_stepping, nullptr);
  if (!of.first_stepping) of.last_stepping = nullptr;
  own.step = own.first_step;
  own.first_step = own.step->next;
  own.step->next = nullptr;
  if (!own.first_step) {
    own.last_step = nullptr;
    own.stepping = false;
    return;
  }
  (of.last_stepping ? of.last_stepping->turn.next_stepping : of.first_stepping) = &visit;
  of.last_stepping = &visit;
}

// With the mutex held: lets threads of a call that has answered continue without a turn.
void object_turns::release_returning(lane& of, const object_visit& visit) noexcept {
  returning_call** link = &of.first_returning;
  of.last_returning = nullptr;
  while (returning_call* each = *link) {
    if (each->visit == &visit) {
      *link = each->next;
      each->admitted = true;
      admitted_.notify_all();
    } else {
      of.last_returning = each;
      link = &each->next;
    }
  }
}

void object_turns::leave(object_visit& visit) noexcept {
  begun now;
  work* steps = nullptr;
  {
    const std::lock_guard lock(mutex_);
    place& own = visit.turn;
    if (own.left) return;
    own.left = true;
    if (own.early) {
      withdraw(visit, now);
    } else if (lane* in = find(own)) {
      if (in->running == &visit) {
        in->running = nullptr;
      } else if (!own.running) {
        remove(in->waiting, visit);  // it was dropped before its turn
      }
      if (own.stepping) {  // its remaining steps take no turn
        object_visit** link = &in->first_stepping;
        object_visit* before = nullptr;
        while (*link != &visit) {
          before = *link;
          link = &before->turn.next_stepping;
        }
        *link = own.next_stepping;
        if (in->last_stepping == &visit) in->last_stepping = before;
        own.stepping = false;
        steps = std::exchange(own.first_step, nullptr);
        own.last_step = nullptr;
      }
      release_returning(*in, visit);
      advance(*in, now);
      leave_lane(own);
    }
  }
  now.launch();
  while (steps) {
    work* const step = steps;
    steps = step->next;
    step->next = nullptr;
    visit.call.worker()->post(step);
  }
}

void object_turns::pause(object_visit& visit) noexcept {
  begun now;
  {
    const std::lock_guard lock(mutex_);
    const place& own = visit.turn;
    lane* in = own.left ? nullptr : find(own);
    if (!in || in->running != &visit) return;
    in->running = nullptr;
    advance(*in, now);
  }
  now.launch();
}

void object_turns::resume(object_visit& visit) noexcept {
  std::unique_lock lock(mutex_);
  const place& own = visit.turn;
  lane* in = own.left ? nullptr : find(own);
  if (!in || in->running == &visit) return;
  if (!in->running) {
    in->running = &visit;
    return;
  }
  returning_call self{&visit};
  (in->last_returning ? in->last_returning->next : in->first_returning) = &self;
  in->last_returning = &self;
  admitted_.wait(lock, [&] { return self.admitted; });
}

void object_turns::post(object_visit& visit, work* step) noexcept {
  begun now;
  {
    std::unique_lock lock(mutex_);
    place& own = visit.turn;
    lane* in = own.left ? nullptr : find(own);
    if (!in) {
      lock.unlock();
      return visit.call.worker()->post(step);
    }
    step->next = nullptr;
    (own.last_step ? own.last_step->next : own.first_step) = step;
    own.last_step = step;
    if (!own.stepping) {
      own.stepping = true;
      own.next_stepping = nullptr;
      (in->last_stepping ? in->last_stepping->turn.next_stepping : in->first_stepping) = &visit;
      in->last_stepping = &visit;
    }
    advance(*in, now);
  }
  now.launch();
}

// ---------------------------------------------------------------- the wait graph

void object_turns::set_maker(object_visit* visit) noexcept {
  const std::lock_guard lock(mutex_);
  maker_ = visit;
}

object_turns::obstacle object_turns::obstacle_of(const object_visit& visit) const {
  const std::lock_guard lock(mutex_);
  const place& own = visit.turn;
  if (own.early) return {maker_, {}};
  if (own.left || !own.in_lane) return {};
  // On a reentrant object no call keeps the turn while it waits.
  if (own.running) return {nullptr, {visit.target_id, own.lane_key.id, own.number}, true};
  const object_visit* running = running_in(own);
  if (!running) return {};
  return {nullptr, {visit.target_id, own.lane_key.id, running->turn.number}};
}

std::string object_turns::describe_wait(const object_visit& visit) const {
  const std::lock_guard lock(mutex_);
  const place& own = visit.turn;
  if (own.left || own.passes || own.running) return {};
  if (own.early) return fmt::format("{}, which has yet to be made", visit.describe_target());
  if (!own.in_lane) return {};
  const object_visit* running = running_in(own);
  if (!running) return own.ready ? "" : "the owners of references among its arguments";
  return fmt::format("its turn at {}, held by {}", visit.describe_target(), running->call.describe_plainly());
}

// ---------------------------------------------------------------- executors

void turn_executor::post(work* item) noexcept { call_.target->turns().post(call_, item); }

}  // namespace ferry::inline v0::detail

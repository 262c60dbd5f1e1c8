// Applies events to a model world.

#include "reference_model_turn.hpp"

namespace ferry_test::model {

namespace {

using control_kind = reference_control::kind;
using event = action::kind;

void reply_with(turn& callee, world& now, const rules& with, int from, std::pair<int, std::uint64_t> to,
                std::size_t handle) {
  message answer;
  answer.what = message::kind::reply;
  answer.from = from;
  answer.to = to.first;
  answer.number = to.second;
  const std::size_t forks = callee->handles.size();
  answer = callee.with_reference(answer, handle < forks ? handle : handle - forks, handle >= forks);
  callee->in_replies.emplace(to.first, answer.handed->transfer);
  --now.replies;
  transmit(now, answer, with);
}

// Answers the caller: at once unless the reply may carry a reference.
void owe_reply(turn& callee, const world& now, std::pair<int, std::uint64_t> to) {
  if (callee->deaths_known & bit(to.first)) return;
  if (now.replies > 0) {
    callee->owed.insert(to);
  } else {
    callee.answer(to);
  }
}

void deliver_use(turn& owner, const world& now, const message& carried) {
  const object_id& object = *carried.uses;
  const std::pair caller{carried.from, carried.number};
  if (owner->deaths_known & bit(carried.from)) return;
  switch (owner.protocol().look_up(object)) {
    case reference_protocol::knowledge::here:
      if (!owner->values.contains(object)) owner.fault("has lost the value of an object that is used");
      if (owner->making.contains(object)) {
        owner->waiting.emplace(object, caller);
      } else {
        owner.answer(caller);
      }
      return;
    case reference_protocol::knowledge::awaited:
      if (owner->waiting.emplace(object, caller).second) owner.protocol().await(object);
      return;
    case reference_protocol::knowledge::deleted: {
      const bool in_time = (now.crashed & bit(carried.from)) == 0 &&
                           now.nodes[static_cast<std::size_t>(carried.from)]->calls.contains(carried.number);
      if (in_time && !may_fail(now, object, carried.lineage)) owner.fault("does not know an object that is used");
      owner.answer(caller);
      return;
    }
  }
}

void deliver_call(world& now, const rules& with, const message& carried, std::string& problem) {
  turn callee(now, with, problem, carried.to);
  if (carried.uses) {
    deliver_use(callee, now, carried);
    callee.finish();
    return;
  }
  const bool fresh = callee.receive(carried);
  if (carried.makes && fresh) {
    if (callee.protocol().begin_creation(*carried.makes, callee.effects)) {
      callee->values.insert(*carried.makes);
      callee->making[*carried.makes] = {carried.from, carried.number};
    } else if (now.duplicates == with.duplicates && !may_fail(now, *carried.makes, 0)) {
      callee.fault("refuses to make an object although the call is not late");
    }
  } else if (fresh) {
    owe_reply(callee, now, {carried.from, carried.number});
  }
  callee.finish();
}

void deliver_reply(world& now, const rules& with, const message& carried, std::string& problem) {
  const auto call = now.nodes[carried.to]->calls.find(carried.number);
  if (call == now.nodes[carried.to]->calls.end()) return;  // the call has ended: the reply is discarded unread
  turn caller(now, with, problem, carried.to);
  if (call->second.transfer != 0) {
    caller.protocol().arrived(worker(carried.from), call->second.transfer, caller.effects);
  }
  if (call->second.makes) caller.protocol().confirm_creation(*call->second.makes, caller.effects);
  caller->calls.erase(carried.number);
  caller.receive(carried);
  caller.finish();
}

void deliver_control(world& now, const rules& with, const message& carried, bool answered, std::string& problem) {
  reference_answer answer{};
  {
    turn receiver(now, with, problem, carried.to);
    answer = receiver.protocol().on_control(worker(carried.from), carried.control, receiver.effects);
    receiver.finish();
  }
  if (!answered) return;
  if (carried.control.what == control_kind::child_accept || carried.control.what == control_kind::user_delete) {
    // Its answer only stops the resending, so deliver it at once.
    if ((now.crashed & bit(carried.from)) && !with.zombies) return;
    turn sender(now, with, problem, carried.from);
    sender->outbox.erase({worker(carried.to), carried.control});
    sender.protocol().on_answer(worker(carried.to), carried.control, answer, sender.effects);
    sender.finish();
    return;
  }
  message back;
  back.what = message::kind::answer;
  back.from = carried.to;
  back.to = carried.from;
  back.control = carried.control;
  back.answer = answer;
  transmit(now, back, with);
}

void deliver_answer(world& now, const rules& with, const message& carried, std::string& problem) {
  turn asker(now, with, problem, carried.to);
  asker->outbox.erase({worker(carried.from), carried.control});
  asker.protocol().on_answer(worker(carried.from), carried.control, carried.answer, asker.effects);
  asker.finish();
}

void deliver(world& now, const rules& with, std::size_t which, bool answered, std::string& problem) {
  const message carried = now.in_flight[which];
  now.in_flight.erase(nth(now.in_flight, which));
  switch (carried.what) {
    case message::kind::call: return deliver_call(now, with, carried, problem);
    case message::kind::reply: return deliver_reply(now, with, carried, problem);
    case message::kind::control: return deliver_control(now, with, carried, answered, problem);
    case message::kind::answer: return deliver_answer(now, with, carried, problem);
  }
}

void create(world& now, const rules& with, std::size_t which, std::size_t argument, std::string& problem) {
  const auto [actor, owner] = with.creates[which];
  now.created |= bit(static_cast<int>(which));
  turn creator(now, with, problem, actor);
  message request;
  request.to = owner;
  if (argument != 0) {
    const std::size_t forks = creator->handles.size();
    request =
        creator.with_reference(request, argument <= forks ? argument - 1 : argument - 1 - forks, argument > forks);
  }
  request.makes = creator.protocol().create(worker(owner));
  if (actor == owner) {
    creator->own_handles.insert(*request.makes);
  } else {
    creator->handles[creator.protocol().creating_fork(*request.makes)] = {*request.makes, bit(actor)};
  }
  creator.call(request);
  creator.finish();
}

// The sender learns that a call was not sent.
void report_unsent(world& now, const rules& with, std::size_t which, std::string& problem) {
  const message carried = now.in_flight[which];
  now.in_flight.erase(nth(now.in_flight, which));
  --now.unsent;
  turn caller(now, with, problem, carried.from);
  caller->calls.erase(carried.number);
  if (carried.handed) {
    caller.protocol().not_sent(worker(carried.to), carried.handed->transfer, caller.effects);
  }
  if (carried.makes) {
    now.given_up.insert(*carried.makes);
    caller->handles.erase(caller.protocol().creating_fork(*carried.makes));
    caller.protocol().not_created(*carried.makes, caller.effects);
  }
  caller.finish();
}

void use(world& now, const rules& with, std::size_t which, std::size_t handle, std::string& problem) {
  now.used |= bit(static_cast<int>(which));
  turn caller(now, with, problem, with.uses[which]);
  const auto [fork, held] = *nth(caller->handles, handle);
  message request;
  request.to = id_of(fork.owner);
  request.uses = held.object;
  request.lineage = held.lineage;
  caller.call(request, fork);
  caller.finish();
}

std::uint64_t left_out(const rules& with) { return with.sends_watermarks ? 1 : reference_protocol::most_left_out; }

void crash(world& now, const rules& with, int actor) {
  --now.crashes;
  now.crashed |= bit(actor);
  if (with.zombies) return;
  now.nodes[actor] = std::make_shared<node>(actor, left_out(with));
  std::erase_if(now.in_flight, [&](const message& each) { return each.to == actor; });
}

}  // namespace

world begin(const rules& with) {
  world now;
  for (int id = 0; id < workers; ++id) now.nodes[id] = std::make_shared<node>(id, left_out(with));
  now.replies = with.replies;
  now.losses = with.losses;
  now.duplicates = with.duplicates;
  now.stop_level = with.stop_level;
  now.unsent = with.unsent;
  now.impatience = with.impatience;
  now.crashes = with.crashes;
  std::string ignored;
  for (const auto& [creator, owner] : with.there) {
    if (creator == owner) {
      turn at_owner(now, with, ignored, owner);
      const object_id object = at_owner.protocol().own();
      at_owner->own_handles.insert(object);
      at_owner->values.insert(object);
      continue;
    }
    turn at_creator(now, with, ignored, creator);
    turn at_owner(now, with, ignored, owner);
    const object_id object = at_creator.protocol().create(worker(owner));
    at_creator->handles[at_creator.protocol().creating_fork(object)] = {object, 0};
    at_owner.protocol().begin_creation(object, at_owner.effects);
    at_owner.protocol().end_creation(object, at_owner.effects);
    at_owner->values.insert(object);
    at_creator.protocol().confirm_creation(object, at_creator.effects);
  }
  return now;
}

world apply(const world& before, const action& step, const rules& with, std::string& problem) {
  world now = before;
  switch (step.what) {
    case event::deliver: deliver(now, with, step.which, true, problem); return now;
    case event::deliver_unanswered:
      --now.losses;
      deliver(now, with, step.which, false, problem);
      return now;
    case event::lose:
      --now.losses;
      now.in_flight.erase(nth(now.in_flight, step.which));
      return now;
    case event::duplicate:
      --now.duplicates;
      transmit(now, message(now.in_flight[step.which]), with);
      return now;
    case event::lose_unsent: report_unsent(now, with, step.which, problem); return now;
    case event::crash: crash(now, with, step.actor); return now;
    case event::create: create(now, with, step.which, step.how, problem); return now;
    case event::use: use(now, with, step.which, step.how, problem); return now;
    default: break;
  }
  turn at(now, with, problem, step.actor);
  switch (step.what) {
    case event::resend: at.send(*nth(at->outbox, step.which)); break;
    case event::end_creation: {
      const auto [object, caller] = *nth(at->making, step.which);
      at->making.erase(object);
      at.protocol().end_creation(object, at.effects);
      at.answer_waiting(object);
      at.finish();
      owe_reply(at, now, caller);
      break;
    }
    case event::reply: {
      const auto caller = *nth(at->owed, step.which);
      at->owed.erase(caller);
      if (step.how == 0) {
        at.answer(caller);
      } else {
        reply_with(at, now, with, step.actor, caller, step.how - 1);
      }
      break;
    }
    case event::stop_waiting: {
      --now.impatience;
      const auto [object, caller] = *nth(at->waiting, step.which);
      at->waiting.erase({object, caller});
      at.protocol().stop_awaiting(object, at.effects);
      at.answer(caller);
      break;
    }
    case event::give_up_early: --now.stop_level; [[fallthrough]];
    case event::give_up: at.give_up(step.which); break;
    case event::query_early: --now.stop_level; [[fallthrough]];
    case event::query: {
      const auto [to, transfer] = *nth(at->in_replies, step.which);
      at->in_replies.erase({to, transfer});
      at.protocol().query(worker(to), transfer, at.effects);
      break;
    }
    case event::learn_death: {
      const int dead = static_cast<int>(step.which);
      at.learn_death(dead);
      if (!with.ghosts) {
        std::erase_if(now.in_flight, [&](const message& each) { return each.from == dead && each.to == step.actor; });
      }
      break;
    }
    case event::drop: at.drop(nth(at->handles, step.which)->first); break;
    case event::drop_own: {
      const object_id object = *nth(at->own_handles, step.which);
      at->own_handles.erase(object);
      at.protocol().drop_locally(object, at.effects);
      break;
    }
    case event::hand:
    case event::hand_own: {
      now.handed |= bit(static_cast<int>(step.which));
      message request;
      request.to = with.hands[step.which].second;
      at.call(at.with_reference(request, step.how, step.what == event::hand_own));
      break;
    }
    default: break;
  }
  at.finish();
  return now;
}

}  // namespace ferry_test::model

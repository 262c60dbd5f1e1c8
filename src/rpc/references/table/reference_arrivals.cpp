// Incoming messages of reference_table: references, and calls that are for objects, make them, or carry references.

#include <utility>

#include <fmt/format.h>
#include <ferry/base/error.hpp>
#include <ferry/rpc/detail/incoming_call.hpp>

#include "../../worker/worker_core.hpp"
#include "reference_table.hpp"
#include "request_references.hpp"

namespace ferry::inline v0::detail {

struct reference_table::received_references final : handle_reader {
  std::vector<std::shared_ptr<reference_state>> states;

  [[nodiscard]] void* get(std::uint32_t index) const override {
    if (index >= states.size()) {
      throw_error(errc::malformed,
                  fmt::format("the message has {} references, but its payload names number {}", states.size(), index));
    }
    return const_cast<std::shared_ptr<reference_state>*>(&states[index]);
  }
};

// Returns the state that the handles of that fork, or of that local object, share; makes one if there is none. The
// state is constructed last: none may be destroyed while the mutex is held, since its destructor locks the mutex.
std::shared_ptr<reference_state> reference_table::state_of(const handed_reference& reference,
                                                           const reference_protocol::receipt& receipt,
                                                           consequences& to_do) {
  const object_id& object = reference.object;
  if (receipt.refused) {
    auto why = make_error(errc::reference_deleted, "the reference arrived in a message that its sender had given up");
    auto state = make_state(object);
    state->fork.emplace();  // not registered anywhere
    state->end(std::move(why));
    return state;
  }
  if (receipt.own) {
    auto& hold = holds_[object];
    if (auto state = hold.lock()) return state;
    const bool expected = protocol_.look_up(object) != reference_protocol::knowledge::deleted;
    auto local = object_at(object);
    if (!local) {
      local = expected_object(object);
      if (!expected) to_do.never_made.emplace_back(local, object);
    }
    auto state = make_state(object);
    state->set_local(std::move(local));
    hold = state;
    return state;
  }
  auto& known = forks_[receipt.fork];
  if (auto state = known.lock()) return state;
  const bool owner_leaves = leaving_.contains(object.owner);
  if (owner_leaves) to_do.failed.reserve(to_do.failed.size() + 1);
  auto confirmation = receipt.confirmed ? ref_ptr<fork_known>() : ref_ptr<fork_known>::adopt(new fork_known);
  auto state = make_state(object);
  state->fork = receipt.fork;
  state->known = std::move(confirmation);
  known = state;
  if (owner_leaves) to_do.failed.emplace_back(state, errc::peer_lost);
  return state;
}

std::shared_ptr<const handle_reader> reference_table::receive(const reference_records& records, const call_target& from,
                                                              std::vector<reference_handle>* unconfirmed) {
  auto received = std::make_shared<received_references>();
  received->states.reserve(records.references.size());
  if (unconfirmed) unconfirmed->reserve(records.references.size());
  const peer_incarnation sender = sender_of(from, records.from);
  bool closed = false;
  change([&](reference_effects& effects, consequences& to_do) {
    closed = closed_;
    for (const handed_reference& each : records.references) {
      const auto receipt = protocol_.receive(each, sender, effects);
      try {
        auto state = state_of(each, receipt, to_do);
        if (unconfirmed && !receipt.refused && !receipt.own && state->known && !state->known->ready()) {
          unconfirmed->emplace_back(state);
        }
        received->states.push_back(std::move(state));
      } catch (...) {  // no memory: a fork or hold that got no handle ends
        if (receipt.refused) throw;
        if (receipt.own) {
          if (const auto hold = holds_.find(each.object); hold == holds_.end() || hold->second.expired()) {
            if (hold != holds_.end()) holds_.erase(hold);
            protocol_.drop_locally(each.object, effects);
          }
        } else if (const auto fork = forks_.find(receipt.fork); fork == forks_.end() || fork->second.expired()) {
          if (fork != forks_.end()) forks_.erase(fork);
          protocol_.drop(receipt.fork, effects);
        }
        throw;
      }
    }
  });
  if (closed) {
    const auto why = make_error(errc::reference_deleted, "the reference arrived after its worker was shut down");
    for (const auto& state : received->states) state->end(why);
  }
  return received;
}

// ---------------------------------------------------------------- calls that are served

// Continuation of a call that waits for the owner of one of its arguments.
struct reference_table::resume_call : continuation {
  context_ptr keep;
  // What it waits for; may outlive the call if that ends at its deadline.
  reference_handle reference;
  ref_ptr<owned_object> object;
  request_references* request = nullptr;
};

// Timer item for the same call's deadline.
struct reference_table::parked_limit : work {
  context_ptr keep;
  request_references* request = nullptr;
};

// Called when everything that the request waits for is there (`late` is null), and at its deadline or when it is given up
// (`late` is the error). The first call counts.
void reference_table::begin(request_references& request, const std::exception_ptr& late, bool by_timer) noexcept {
  if (request.begun.exchange(true)) return;
  if (late) request.late = late;
  // The timer may run before its number is known.
  if (!by_timer && request.at_limit && timers_->cancel_timer(request.limit)) {
    delete static_cast<parked_limit*>(request.at_limit);
  }
  if (request.target) {
    request.target->turns().ready(request);
  } else {
    request.call.release();
  }
}

void reference_table::admit(request_references& request) noexcept {
  request.call.hold();
  std::vector<reference_handle> unconfirmed;
  std::vector<std::pair<std::unique_ptr<resume_call>, future_state_base*>> waits;
  std::unique_ptr<parked_limit> limit;
  const auto refuse = [&](const std::exception_ptr& why) {
    waits.clear();
    if (request.target && request.target->turns().refuse(request, why)) return;
    if (!request.refusal) request.refusal = why;
  };
  const auto wait_for = [&](future_state_base& what, reference_handle reference, ref_ptr<owned_object> object) {
    auto waiting = std::make_unique<resume_call>();
    waiting->keep = context_ptr::share(&request.call);
    waiting->reference = std::move(reference);
    waiting->object = std::move(object);
    waiting->request = &request;
    waiting->invoke = [](continuation* self) noexcept {
      const std::unique_ptr<resume_call> owned(static_cast<resume_call*>(self));
      request_references& own = *owned->request;
      if (own.missing.fetch_sub(1) == 1) own.table->begin(own, nullptr);
    };
    waits.emplace_back(std::move(waiting), &what);
  };
  const deadline until = static_cast<const call_context&>(request.call).deadline();
  // All allocations come first. A call that is refused for lack of memory waits for nothing.
  try {
    read_request(request, unconfirmed);
    if (request.made_before) {
      wait_for(*request.made_before, {}, request.made_before);  // it needs no references
    } else {
      for (const reference_handle& each : unconfirmed) wait_for(*each.get()->known, each, {});
    }
    if (!waits.empty() && !request.made_before && !until.is_never()) {
      limit = std::make_unique<parked_limit>();
      limit->keep = context_ptr::share(&request.call);
      limit->request = &request;
      limit->run = [](work* self) noexcept {
        const std::unique_ptr<parked_limit> owned(static_cast<parked_limit*>(self));
        request_references& own = *owned->request;
        own.table->begin(own,
                         make_error(errc::rpc_timeout,
                                    "the deadline passed while waiting for the owners of references among its "
                                    "arguments to confirm them"),
                         true);
      };
    }
    if (request.target) request.target->turns().enter(request);
  } catch (...) {
    refuse(std::current_exception());
  }
  if (request.target && !request.refusal) {
    if (request.creation) waits_.add_maker(request);
    waits_.add(request);
  }
  if (limit && !waits.empty()) {
    request.at_limit = limit.get();
    try {
      request.limit = timers_->start_timer(until, limit.get());
      (void)limit.release();
    } catch (...) {
      request.at_limit = nullptr;
      refuse(std::current_exception());
    }
  }
  request.missing.fetch_add(static_cast<int>(waits.size()));
  for (auto& [waiting, what] : waits) what->attach(waiting.release());
  if (request.missing.fetch_sub(1) == 1) begin(request, nullptr);
}

// The place of the call in the object's turns would be kept for as long as it waits, and it may wait for ever: for an
// object that is never made.
void reference_table::give_up(request_references& request, const std::exception_ptr& why) noexcept {
  if (request.target) (void)request.target->turns().refuse(request, why);
  begin(request, why);
}

void reference_table::check_own(const object_id& object) const {
  if (object.owner == self_) return;
  throw_error(errc::reference_deleted,
              fmt::format("the request is for an object of another incarnation of worker {}", object.owner.id.value));
}

void reference_table::find_target(request_references& own, const object_id& object) {
  check_own(object);
  own.target_id = object;
  const std::lock_guard lock(mutex_);
  own.target = object_at(object);
  if (own.target) {
    own.awaits = protocol_.await(object);  // its references may end before it is made
    return;
  }
  if (closed_ || protocol_.look_up(object) == reference_protocol::knowledge::deleted) {
    throw_error(errc::reference_deleted, "the object has been deleted: no reference to it was left");
  }
  auto expected = expected_object(object);
  try {
    own.awaits = protocol_.await(object);
  } catch (...) {
    objects_.erase(object);
    throw;
  }
  own.target = std::move(expected);
}

void reference_table::begin_creation(request_references& own, const object_id& object) {
  incoming_call& call = own.call;
  check_own(object);
  const bool by_caller =
      object.creator == sender_of({call.caller(), call.sender_incarnation()}, object.creator.incarnation);
  const std::lock_guard lock(mutex_);
  auto known = object_at(object);
  const bool fresh = !known;
  bool begun = false;
  if (!closed_ && by_caller) {
    if (fresh) known = expected_object(object);
    try {
      reference_effects effects;
      begun = protocol_.begin_creation(object, effects);
    } catch (...) {
      if (fresh) objects_.erase(object);
      throw;
    }
    if (!begun && fresh) objects_.erase(object);
  }
  if (begun) {
    own.creation_id = object;
    own.creation = std::move(known);
    if (call.method()) own.creation->keep_code(*call.method());
    return;
  }
  if (by_caller && protocol_.look_up(object) == reference_protocol::knowledge::here) {
    own.made_before = object_at(object);
    own.target = {};
  }
  if (own.made_before) return;
  own.given_up = by_caller;
  throw_error(errc::reference_deleted, "the call that makes the object was given up by its caller, or is a duplicate");
}

void reference_table::read_request(request_references& own, std::vector<reference_handle>& unconfirmed) {
  inbound_message& request = own.call.request();
  reference_records records = read_records(request.extensions);
  own.chain.turns = std::move(records.chain.turns);
  own.takes_no_turn = only_queries_object(request.header.method);
  if (!records.references.empty())
    request.handles = receive(records, {own.call.caller(), own.call.sender_incarnation()}, &unconfirmed);
  if (records.object) find_target(own, *records.object);
  if (records.creation) begin_creation(own, *records.creation);
}

void reference_table::done(request_references& own) noexcept {
  own.answered.store(true);
  waits_.remove(own);
  if (own.creation) {
    if (!own.creation->ready()) {  // an error costs as much as several calls
      own.creation->fail(
          make_error(errc::reference_deleted, "the call that was to make the object ended without making it"));
    }
    end([&](reference_effects& effects, consequences&) { protocol_.end_creation(own.creation_id, effects); });
    own.creation = {};
  }
  if (own.target) own.target->turns().leave(own);
  if (std::exchange(own.awaits, false)) {
    end([&](reference_effects& effects, consequences&) { protocol_.stop_awaiting(own.target_id, effects); });
  }
}

}  // namespace ferry::inline v0::detail

// The holder's side of reference_protocol: forks of this worker, and references that it sends to other workers.

#include "reference_names.hpp"
#include "reference_protocol.hpp"

namespace ferry::inline v0::detail {

// ---- at a holder

void reference_protocol::forget(users::iterator fork) {
  if (fork->second.origin) received_.erase(*fork->second.origin);
  for (const transfer_id& pin : fork->second.pins) transfers_.erase(pin);
  users_.erase(fork);
}

void reference_protocol::end_if_free(users::iterator fork, reference_effects& effects) {
  const user_fork& entry = fork->second;
  if (!entry.dropped || !entry.pins.empty() || entry.known != user_fork::standing::confirmed) return;
  effects.controls.push_back({fork->first.owner, deletion(entry.object, fork->first.key)});
  forget(fork);
}

void reference_protocol::accept(users::iterator fork, reference_effects& effects) {
  user_fork& entry = fork->second;
  if (!entry.accept_owed) return;
  effects.controls.push_back(
      {entry.origin->peer, about_transfer(reference_control::kind::child_accept, entry.origin->number)});
  entry.accept_owed = false;
}

void reference_protocol::confirm(users::iterator fork, reference_effects& effects) {
  fork->second.known = user_fork::standing::confirmed;
  effects.confirmed.push_back(fork->first);
  accept(fork, effects);
  end_if_free(fork, effects);
}

void reference_protocol::fail(users::iterator fork, errc why, reference_effects& effects) {
  if (!fork->second.dropped) effects.failed.push_back({fork->first, why});
  // Its transfers need no further action: each child gets the owner's answer, or the owner's end, by itself.
  accept(fork, effects);
  forget(fork);
}

object_id reference_protocol::create(peer_incarnation owner) {
  const object_id object{owner, self_, draw_claim(owner)};
  if (owner == self_) {
    owned_object& entry = objects_[object];
    entry.held = true;
    entry.forks.insert({self_, by_holder(object.number)});
  } else if (!is_gone(owner)) {
    user_fork& fork = users_[creating_fork(object)];
    fork.object = object;
    fork.known = user_fork::standing::creating;
  }
  return object;
}

void reference_protocol::not_created(const object_id& object, reference_effects& effects) {
  if (object.owner == self_) {
    end_fork(object, self_, by_holder(object.number), effects);
    return;
  }
  const auto fork = users_.find(creating_fork(object));
  if (fork == users_.end() || fork->second.known != user_fork::standing::creating) return;
  effects.controls.push_back({object.owner, deletion(object, fork->first.key)});
  forget(fork);
}

void reference_protocol::confirm_creation(const object_id& object, reference_effects& effects) {
  if (object.owner == self_) {
    end_fork(object, self_, by_holder(object.number), effects);
    return;
  }
  const auto fork = users_.find(creating_fork(object));
  if (fork != users_.end() && fork->second.known == user_fork::standing::creating) confirm(fork, effects);
}

void reference_protocol::query_creation(const object_id& object, reference_effects& effects) {
  if (object.owner == self_) {
    const auto entry = objects_.find(object);
    if (entry == objects_.end() || entry->second.queried ||
        !entry->second.forks.contains({self_, by_holder(object.number)})) {
      return;
    }
    entry->second.queried = true;
  } else {
    const auto fork = users_.find(creating_fork(object));
    if (fork == users_.end() || fork->second.queried || fork->second.known != user_fork::standing::creating) return;
    fork->second.queried = true;
  }
  effects.controls.push_back(
      {object.owner, about_claim(reference_control::kind::creation_query, object, object.number)});
}

void reference_protocol::drop(const held_fork& fork, reference_effects& effects) {
  const auto entry = users_.find(fork);
  if (entry == users_.end()) return;
  entry->second.dropped = true;
  end_if_free(entry, effects);
}

bool reference_protocol::confirmed(const held_fork& fork) const {
  const auto entry = users_.find(fork);
  return entry != users_.end() && entry->second.known == user_fork::standing::confirmed;
}

// ---- references in messages

handed_reference reference_protocol::transfer(const object_id& own_object, peer_incarnation to) {
  if (is_gone(to)) return {own_object, ++unusable_claims_};
  const handed_reference reference{own_object, ++peers_[to].transfers};
  const auto entry = objects_.find(own_object);
  if (entry == objects_.end()) return reference;
  entry->second.forks.insert({to, by_owner(reference.transfer)});
  transfers_[{to, reference.transfer}].object = own_object;
  return reference;
}

handed_reference reference_protocol::transfer(const held_fork& fork, peer_incarnation to) {
  const auto entry = users_.find(fork);
  if (entry == users_.end()) return {};
  if (is_gone(to)) return {entry->second.object, ++unusable_claims_};
  const handed_reference reference{entry->second.object, ++peers_[to].transfers};
  const transfer_id id{to, reference.transfer};
  entry->second.pins.insert(id);
  transfer_state& state = transfers_[id];
  state.object = reference.object;
  state.pinned = fork;
  return reference;
}

void reference_protocol::unpin(const held_fork& fork, const transfer_id& transfer, reference_effects& effects) {
  const auto entry = users_.find(fork);
  if (entry == users_.end()) return;
  entry->second.pins.erase(transfer);
  end_if_free(entry, effects);
}

void reference_protocol::undo(const transfer_id& transfer, reference_effects& effects) {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return;
  const transfer_state state = found->second;
  transfers_.erase(found);
  if (state.pinned) {
    unpin(*state.pinned, transfer, effects);
  } else {
    end_fork(state.object, transfer.peer, by_owner(transfer.number), effects);
  }
}

// Counts a number that the receiver will not see or need not remember; sends a watermark once there are enough of them.
void reference_protocol::leave_out(const peer_incarnation& peer, reference_effects& effects) {
  if (is_gone(peer)) return;
  peer_record& record = peers_[peer];
  if (++record.left_out < most_left_out_) return;
  const auto open = transfers_.lower_bound({peer, 0});
  const std::uint64_t first =
      open == transfers_.end() || open->first.peer != peer ? record.transfers + 1 : open->first.number;
  if (first == record.watermark_sent) return;
  record.left_out = 0;
  record.watermark_sent = first;
  effects.controls.push_back({peer, about_transfer(reference_control::kind::watermark, first)});
}

void reference_protocol::settle_arrived(const transfer_id& transfer) {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return;
  // From here on the child alone maintains a fork that the owner granted. A pinned one waits for child_accept.
  if (found->second.pinned) {
    found->second.arrived = true;
  } else {
    transfers_.erase(found);
  }
}

void reference_protocol::settle_accepted(const transfer_id& transfer, reference_effects& effects) {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) return;
  const std::optional<held_fork> pinned = found->second.pinned;
  transfers_.erase(found);
  if (pinned) unpin(*pinned, transfer, effects);
}

void reference_protocol::not_sent(peer_incarnation to, std::uint64_t transfer, reference_effects& effects) {
  if (settled(to, transfer)) return;
  undo({to, transfer}, effects);
  leave_out(to, effects);
}

void reference_protocol::arrived(peer_incarnation to, std::uint64_t transfer, reference_effects& /*effects*/) {
  settle_arrived({to, transfer});
}

void reference_protocol::query(peer_incarnation to, std::uint64_t transfer, reference_effects& effects,
                               std::uint64_t call) {
  const auto found = transfers_.find({to, transfer});
  if (found == transfers_.end() || found->second.arrived || found->second.queried) return;
  reference_control control = about_transfer(reference_control::kind::transfer_query, transfer);
  control.object.number = call;
  effects.controls.push_back({to, control});
  found->second.queried = true;
}

bool reference_protocol::settled(peer_incarnation to, std::uint64_t transfer) const {
  return !transfers_.contains({to, transfer});
}

bool reference_protocol::knows_transfer(peer_incarnation from, std::uint64_t number) const {
  const auto peer = peers_.find(from);
  return peer != peers_.end() && (peer->second.withdrawn.contains(number) || peer->second.seen.contains(number));
}

reference_answer reference_protocol::on_transfer_query(peer_incarnation from, std::uint64_t number) {
  peer_record& peer = peers_[from];
  if (peer.withdrawn.contains(number)) return reference_answer::too_late;
  if (!peer.seen.insert(number)) return reference_answer::done;
  peer.withdrawn.insert(number);
  return reference_answer::too_late;
}

reference_protocol::receipt reference_protocol::receive_own(const handed_reference& reference, peer_incarnation from,
                                                            number_set& seen, reference_effects& effects) {
  receipt result;
  result.own = true;
  if (seen.contains(reference.transfer)) {
    const auto entry = objects_.find(reference.object);
    result.refused = entry == objects_.end() || !entry->second.held;
    return result;
  }
  effects.controls.reserve(effects.controls.size() + 1);
  effects.never_made.reserve(effects.never_made.size() + 1);
  const bool known = objects_.contains(reference.object);
  const auto entry = find_or_expect(reference.object, effects);
  try {
    seen.insert(reference.transfer);
  } catch (...) {
    if (!known) {
      std::erase(effects.never_made, reference.object);
      objects_.erase(entry);
    }
    throw;
  }
  entry->second.held = true;
  if (from == self_) {
    end_fork(reference.object, self_, by_owner(reference.transfer),
             effects);  // it was registered for the message alone
  } else {
    effects.controls.push_back({from, about_transfer(reference_control::kind::child_accept, reference.transfer)});
  }
  return result;
}

reference_protocol::receipt reference_protocol::receive(const handed_reference& reference, peer_incarnation from,
                                                        reference_effects& effects) {
  receipt result;
  const object_id& object = reference.object;
  const transfer_id id{from, reference.transfer};
  if (is_gone(from) || reference.transfer == 0) {
    result.refused = true;
    return result;
  }
  peer_record& peer = peers_[from];
  if (peer.withdrawn.contains(reference.transfer)) {
    result.refused = true;
    return result;
  }
  if (object.owner == self_) return receive_own(reference, from, peer.seen, effects);
  const bool granted = from == object.owner;
  if (peer.seen.contains(reference.transfer)) {
    const auto known = received_.find(id);
    const auto fork = granted                    ? users_.find({from, by_owner(reference.transfer)})
                      : known == received_.end() ? users_.end()
                                                 : users_.find(known->second);
    result.refused = fork == users_.end() || fork->second.dropped;
    if (result.refused) return result;
    result.fork = fork->first;
    result.confirmed = fork->second.known == user_fork::standing::confirmed;
    return result;
  }
  result.confirmed = granted;
  // A claim that is drawn and then not used leaves a harmless gap.
  result.fork = granted ? held_fork{from, by_owner(reference.transfer)}
                        : held_fork{object.owner, by_holder(draw_claim(object.owner))};
  effects.controls.reserve(effects.controls.size() + 2);
  effects.failed.reserve(effects.failed.size() + 1);
  const auto fork = users_.try_emplace(result.fork).first;
  try {
    if (!granted) received_.emplace(id, result.fork);
    peer.seen.insert(reference.transfer);
  } catch (...) {
    received_.erase(id);
    users_.erase(fork);
    throw;
  }
  fork->second.object = object;
  if (granted) {
    fork->second.known = user_fork::standing::confirmed;
    return result;
  }
  fork->second.origin = id;
  fork->second.accept_owed = true;
  if (is_gone(object.owner)) {
    fail(fork, errc::peer_lost, effects);
  } else {
    effects.controls.push_back(
        {object.owner, about_claim(reference_control::kind::fork_request, object, result.fork.key.number)});
  }
  return result;
}

}  // namespace ferry::inline v0::detail

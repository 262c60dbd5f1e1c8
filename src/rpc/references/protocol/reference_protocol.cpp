#include "reference_protocol.hpp"

#include "reference_names.hpp"

namespace ferry::inline v0::detail {

bool reference_protocol::is_gone(const peer_incarnation& peer) const { return gone_.contains(peer); }

std::uint64_t reference_protocol::draw_claim(const peer_incarnation& owner) {
  return is_gone(owner) ? ++unusable_claims_ : ++peers_[owner].claims;
}

// ---- at the owner

bool reference_protocol::claim_ended(const peer_incarnation& holder, std::uint64_t claim) const {
  const auto found = peers_.find(holder);
  return found != peers_.end() && found->second.ended_claims.contains(claim);
}

bool reference_protocol::may_come(const object_id& object) const {
  // Objects that this worker creates are in objects_ from the beginning.
  return object.owner == self_ && object.creator != self_ && !is_gone(object.creator) &&
         !claim_ended(object.creator, object.number);
}

reference_protocol::objects::iterator reference_protocol::find_or_expect(const object_id& object,
                                                                         reference_effects& effects) {
  const auto [entry, fresh] = objects_.try_emplace(object);
  if (fresh && !may_come(object)) mark_never_made(entry->second, object, effects);
  return entry;
}

void reference_protocol::mark_never_made(owned_object& entry, const object_id& object, reference_effects& effects) {
  effects.never_made.push_back(object);
  entry.made = owned_object::creation::never;
  entry.awaited = 0;
}

void reference_protocol::release_if_free(objects::iterator object, reference_effects& effects) {
  const owned_object& entry = object->second;
  if (entry.held || entry.awaited != 0 || !entry.forks.empty() || entry.made == owned_object::creation::running) return;
  effects.released.push_back(object->first);
  objects_.erase(object);
}

void reference_protocol::end_fork(const object_id& object, peer_incarnation holder, const fork_key& key,
                                  reference_effects& effects) {
  if (key.by == fork_key::numbered_by::holder) {
    if (!is_gone(holder)) peers_[holder].ended_claims.insert(key.number);
  } else {
    const auto granted = transfers_.find({holder, key.number});
    if (granted != transfers_.end() && !granted->second.pinned) transfers_.erase(granted);
  }
  const auto entry = objects_.find(object);
  if (entry == objects_.end()) return;
  entry->second.forks.erase({holder, key});
  const bool its_creation =
      key.by == fork_key::numbered_by::holder && object.creator == holder && object.number == key.number;
  if (its_creation && entry->second.made == owned_object::creation::to_come) {
    mark_never_made(entry->second, object, effects);
  }
  release_if_free(entry, effects);
}

object_id reference_protocol::own() {
  const object_id object{self_, self_, ++peers_[self_].claims};
  owned_object& entry = objects_[object];
  entry.made = owned_object::creation::ended;
  entry.held = true;
  return object;
}

void reference_protocol::hold_locally(const object_id& object) {
  if (const auto entry = objects_.find(object); entry != objects_.end()) entry->second.held = true;
}

void reference_protocol::drop_locally(const object_id& object, reference_effects& effects) {
  const auto entry = objects_.find(object);
  if (entry == objects_.end()) return;
  entry->second.held = false;
  release_if_free(entry, effects);
}

bool reference_protocol::begin_creation(const object_id& object, reference_effects& /*effects*/) {
  const auto known = objects_.find(object);
  if (known == objects_.end()) {
    if (!may_come(object)) return false;
  } else if (known->second.made != owned_object::creation::to_come) {
    return false;
  }
  const auto entry = known == objects_.end() ? objects_.try_emplace(object).first : known;
  try {
    entry->second.forks.insert({object.creator, by_holder(object.number)});
  } catch (...) {
    if (known == objects_.end()) objects_.erase(entry);
    throw;
  }
  entry->second.made = owned_object::creation::running;
  entry->second.awaited = 0;
  return true;
}

void reference_protocol::end_creation(const object_id& object, reference_effects& effects) {
  const auto entry = objects_.find(object);
  if (entry == objects_.end() || entry->second.made != owned_object::creation::running) return;
  entry->second.made = owned_object::creation::ended;
  release_if_free(entry, effects);
}

reference_protocol::knowledge reference_protocol::look_up(const object_id& object) const {
  const auto entry = objects_.find(object);
  if (entry == objects_.end()) return may_come(object) ? knowledge::awaited : knowledge::deleted;
  switch (entry->second.made) {
    case owned_object::creation::to_come: return knowledge::awaited;
    case owned_object::creation::running:
    case owned_object::creation::ended: return knowledge::here;
    case owned_object::creation::never: break;
  }
  return knowledge::deleted;
}

bool reference_protocol::await(const object_id& object) {
  if (look_up(object) != knowledge::awaited) return false;
  ++objects_[object].awaited;
  return true;
}

void reference_protocol::stop_awaiting(const object_id& object, reference_effects& effects) {
  const auto entry = objects_.find(object);
  if (entry == objects_.end() || entry->second.made != owned_object::creation::to_come || entry->second.awaited == 0) {
    return;
  }
  --entry->second.awaited;
  release_if_free(entry, effects);
}

reference_answer reference_protocol::on_fork_request(peer_incarnation from, const object_id& object,
                                                     std::uint64_t claim, reference_effects& effects) {
  // A late duplicate: the fork that it requests was registered and has ended.
  if (claim_ended(from, claim)) return reference_answer::too_late;
  const auto entry = objects_.find(object);
  const std::pair fork{from, by_holder(claim)};
  // A duplicate whose original was registered before the object turned out never to be made: the holder may already
  // have that answer.
  if (entry != objects_.end() && entry->second.forks.contains(fork)) return reference_answer::done;
  if (look_up(object) == knowledge::deleted) {
    end_fork(object, from, fork.second, effects);
    return reference_answer::too_late;
  }
  // The request may arrive before the call that makes the object: then the fork reserves the entry.
  const auto [place, fresh] = objects_.try_emplace(object);
  try {
    place->second.forks.insert(fork);
  } catch (...) {
    if (fresh) objects_.erase(place);
    throw;
  }
  return reference_answer::done;
}

reference_answer reference_protocol::on_creation_query(peer_incarnation from, const object_id& object,
                                                       reference_effects& effects) {
  const auto entry = objects_.find(object);
  if (entry != objects_.end() &&
      (entry->second.made == owned_object::creation::running || entry->second.made == owned_object::creation::ended)) {
    return reference_answer::done;
  }
  if (object.creator == from) end_fork(object, from, by_holder(object.number), effects);
  return reference_answer::too_late;
}

// ---- controls

reference_answer reference_protocol::on_control(peer_incarnation from, const reference_control& control,
                                                reference_effects& effects) {
  using kind = reference_control::kind;
  if (is_gone(from)) return reference_answer::too_late;
  const bool about_transfer =
      control.what == kind::child_accept || control.what == kind::transfer_query || control.what == kind::watermark;
  if (!about_transfer && control.object.owner != self_) {
    // For an earlier incarnation of this worker, whose claims were numbered separately.
    return control.what == kind::user_delete ? reference_answer::done : reference_answer::too_late;
  }
  switch (control.what) {
    case kind::fork_request: return on_fork_request(from, control.object, control.number, effects);
    case kind::child_accept: settle_accepted({from, control.number}, effects); return reference_answer::done;
    case kind::user_delete: end_fork(control.object, from, control.key, effects); return reference_answer::done;
    case kind::transfer_query: return on_transfer_query(from, control.number);
    case kind::creation_query: return on_creation_query(from, control.object, effects);
    case kind::watermark: {
      peer_record& peer = peers_[from];
      peer.seen.insert_below(control.number);
      peer.withdrawn.erase_below(control.number);  // no query for these can follow
      return reference_answer::done;
    }
  }
  return reference_answer::too_late;
}

void reference_protocol::on_answer(peer_incarnation from, const reference_control& control, reference_answer answer,
                                   reference_effects& effects) {
  const bool done = answer == reference_answer::done;
  switch (control.what) {
    case reference_control::kind::child_accept:
    case reference_control::kind::watermark:
    case reference_control::kind::user_delete: return;
    case reference_control::kind::fork_request: {
      const auto fork = users_.find({from, by_holder(control.number)});
      if (fork == users_.end() || fork->second.known != user_fork::standing::requested) return;
      if (done) {
        confirm(fork, effects);
      } else {
        fail(fork, errc::reference_deleted, effects);
      }
      return;
    }
    case reference_control::kind::transfer_query:
      if (answer == reference_answer::not_yet) {
        if (const auto found = transfers_.find({from, control.number}); found != transfers_.end())
          found->second.queried = false;
      } else if (done) {
        settle_arrived({from, control.number});
      } else {
        if (settled(from, control.number)) return;
        undo({from, control.number}, effects);
        leave_out(from, effects);
      }
      return;
    case reference_control::kind::creation_query: {
      if (done || from == self_) {
        confirm_creation(control.object, effects);
        return;
      }
      const auto fork = users_.find(creating_fork(control.object));
      if (fork == users_.end() || fork->second.known != user_fork::standing::creating) return;
      fail(fork, errc::reference_deleted, effects);
      return;
    }
  }
}

// ---- workers that terminate

void reference_protocol::gone(peer_incarnation peer, reference_effects& effects) {
  if (peer == self_ || is_gone(peer)) return;
  order_of_gone_.push_back(peer);
  try {
    gone_.insert(peer);
  } catch (...) {
    order_of_gone_.pop_back();
    throw;
  }
  if (order_of_gone_.size() > most_gone) {
    gone_.erase(order_of_gone_.front());
    order_of_gone_.pop_front();
  }
  peers_.erase(peer);
  end_with([&](const peer_incarnation& each) { return each == peer; }, effects);
}

template <class Over>
void reference_protocol::end_with(const Over& over, reference_effects& effects) {
  for (auto next = objects_.begin(); next != objects_.end();) {
    const auto object = next++;
    owned_object& entry = object->second;
    std::erase_if(entry.forks, [&](const auto& fork) { return over(fork.first); });
    if (over(object->first.creator) && entry.made == owned_object::creation::to_come) {
      mark_never_made(entry, object->first, effects);
    }
    release_if_free(object, effects);
  }
  for (auto next = users_.begin(); next != users_.end();) {
    const auto fork = next++;
    const bool origin_over = fork->second.origin && over(fork->second.origin->peer);
    if (over(fork->first.owner)) {
      if (origin_over) fork->second.accept_owed = false;
      fail(fork, errc::peer_lost, effects);
      continue;
    }
    if (origin_over) {
      received_.erase(*fork->second.origin);
      fork->second.origin.reset();
      fork->second.accept_owed = false;
    }
    std::erase_if(fork->second.pins, [&](const transfer_id& pin) { return over(pin.peer); });
    end_if_free(fork, effects);
  }
  std::erase_if(transfers_, [&](const auto& transfer) { return over(transfer.first.peer); });
}

// Includes what gone() did not reach.
void reference_protocol::end_what_is_free(reference_effects& effects) {
  end_with([&](const peer_incarnation& each) { return is_gone(each); }, effects);
}

// ---- shutdown

std::size_t reference_protocol::pending() const {
  const counts now = figures();
  return now.pending_users + now.pending_children;
}

void reference_protocol::drop_all(reference_effects& effects) {
  for (auto next = users_.begin(); next != users_.end();) {
    const auto fork = next++;
    fork->second.dropped = true;
    end_if_free(fork, effects);
  }
}

// ---- figures

reference_protocol::counts reference_protocol::figures() const {
  counts result;
  for (const auto& [object, entry] : objects_) {
    if (!entry.forks.empty() || entry.made == owned_object::creation::running) ++result.owners;
    result.forks += entry.forks.size();
    if (entry.made == owned_object::creation::to_come) ++result.expected;
  }
  result.users = users_.size();
  for (const auto& [fork, entry] : users_) {
    if (entry.known != user_fork::standing::confirmed) ++result.pending_users;
  }
  result.pending_children = transfers_.size();
  return result;
}

std::vector<reference_protocol::fork_here> reference_protocol::forks() const {
  std::vector<fork_here> result;
  for (const auto& [object, entry] : objects_) {
    for (const auto& [holder, key] : entry.forks) result.push_back({object, holder, key});
  }
  return result;
}

}  // namespace ferry::inline v0::detail

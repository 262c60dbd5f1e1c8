#pragma once

// One step of one worker of a model world: its protocol, and the part of reference_table around it.

#include <algorithm>
#include <iterator>

#include "reference_model.hpp"

namespace ferry_test::model {

constexpr unsigned bit(int id) { return 1U << static_cast<unsigned>(id); }
inline int id_of(const peer_incarnation& peer) { return peer.id.value; }

template <class Container>
auto nth(Container& of, std::size_t place) {
  return std::next(of.begin(), static_cast<std::ptrdiff_t>(place));
}

/// Puts a message on the network.
inline void transmit(world& now, message what, const rules& with) {
  if ((now.crashed & bit(what.to)) && !with.zombies) return;
  if ((now.nodes[static_cast<std::size_t>(what.to)]->deaths_known & bit(what.from)) && !with.ghosts) return;
  now.in_flight.insert(std::upper_bound(now.in_flight.begin(), now.in_flight.end(), what), std::move(what));
}

/// Whether the references of an object may fail: it will not be made, or a worker that kept it died.
inline bool may_fail(const world& now, const object_id& object, unsigned lineage) {
  return now.given_up.contains(object) || ((bit(id_of(object.creator)) | lineage) & now.crashed) != 0;
}

/// One step of one worker.
class turn {
 public:
  turn(world& now, const rules& with, std::string& problem, int actor)
      : now_(now), with_(with), problem_(problem), actor_(actor), copy_(std::make_shared<node>(*now.nodes[actor])) {
    now.nodes[actor] = copy_;
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;
  ~turn() { copy_->digest = {}; }

  node& operator*() { return *copy_; }
  node* operator->() { return copy_.get(); }
  reference_protocol& protocol() { return copy_->protocol; }
  reference_effects effects;

  void fault(std::string_view what) {
    if (now_.crashed & bit(actor_)) return;  // the state of a dead worker does not matter
    if (problem_.empty()) problem_ = "worker " + std::to_string(actor_) + " " + std::string(what);
  }

  /// Carries out the protocol's effects.
  void finish() {
    inject_defect();
    for (auto& control : effects.controls) {
      if (with_.by == defect::settles_early && control.what.what == reference_control::kind::watermark) {
        control.what.number = ferry::detail::reference_probe::peer(protocol(), control.to).transfers + 1;
      }
      if (copy_->deaths_known & bit(id_of(control.to))) fault("has a control for a worker that it knows to be dead");
      if (!copy_->outbox.insert(control).second) fault("issues a control again that is not answered yet");
      send(control);
    }
    for (const object_id& object : effects.released) copy_->values.erase(object);
    for (const object_id& object : effects.never_made) {
      if (!may_fail(now_, object, 0)) fault("gives up an object that may still be made");
      answer_waiting(object);
    }
    for (const held_fork& fork : effects.confirmed) {
      if (const auto handle = copy_->handles.find(fork); handle != copy_->handles.end()) handle->second.lineage = 0;
    }
    for (const auto& failure : effects.failed) {
      const auto handle = copy_->handles.find(failure.fork);
      if (handle == copy_->handles.end()) {
        fault("gets the failure of a reference that it does not have");
        continue;
      }
      const bool owner_died = (bit(id_of(failure.fork.owner)) & now_.crashed) != 0;
      if (!owner_died && !may_fail(now_, handle->second.object, handle->second.lineage)) {
        fault("has a reference that fails without a reason");
      }
      copy_->handles.erase(handle);
    }
    effects = {};
  }

  void answer(std::pair<int, std::uint64_t> to) {
    if (copy_->deaths_known & bit(to.first)) return;
    message back;
    back.what = message::kind::reply;
    back.from = actor_;
    back.to = to.first;
    back.number = to.second;
    transmit(now_, back, with_);
  }

  /// Answers the calls that wait for the object.
  void answer_waiting(const object_id& object) {
    std::erase_if(copy_->waiting, [&](const auto& each) {
      if (each.first == object) answer(each.second);
      return each.first == object;
    });
  }

  void send(const reference_effects::control& control) {
    message carried;
    carried.what = message::kind::control;
    carried.from = actor_;
    carried.to = id_of(control.to);
    carried.control = control.what;
    transmit(now_, carried, with_);
  }

  /// A call, or a reply with number `call`, that carries one of the references here.
  message with_reference(message carrier, std::size_t handle, bool own) {
    const peer_incarnation to = worker(carrier.to);
    if (own) {
      const object_id object = *nth(copy_->own_handles, handle);
      carrier.handed = protocol().transfer(object, to);
      if (with_.by == defect::grants_unregistered) {
        ferry::detail::reference_probe::objects(protocol())
            .at(object)
            .forks.erase({to, {ferry::detail::fork_key::numbered_by::owner, carrier.handed->transfer}});
      }
    } else {
      const auto& [fork, held] = *nth(copy_->handles, handle);
      carrier.handed = protocol().transfer(fork, to);
      carrier.lineage = bit(actor_) | held.lineage;
    }
    return carrier;
  }

  void call(message request, std::optional<held_fork> uses = {}) {
    request.what = message::kind::call;
    request.from = actor_;
    request.number = ++copy_->last_call;
    copy_->calls[request.number] = {request.to, request.handed ? request.handed->transfer : 0, request.makes, uses};
    transmit(now_, request, with_);
  }

  void give_up(std::uint64_t number) {
    const open_call call = copy_->calls.at(number);
    copy_->calls.erase(number);
    if (call.makes) now_.given_up.insert(*call.makes);
    if (with_.by == defect::no_query) return;
    if (call.transfer != 0) protocol().query(worker(call.to), call.transfer, effects);
    if (call.makes) protocol().query_creation(*call.makes, effects);
  }

  /// Returns false if it was refused or is a duplicate.
  bool receive(const message& carrier) {
    if (!carrier.handed) return true;
    const auto sender = worker(carrier.from);
    const auto& parent = ferry::detail::reference_probe::peer(protocol(), sender);
    const std::uint64_t number = carrier.handed->transfer;
    const bool again = parent.seen.contains(number) || parent.withdrawn.contains(number);
    const auto receipt = protocol().receive(*carrier.handed, worker(carrier.from), effects);
    if (receipt.refused) {
      if (!again && (copy_->deaths_known & bit(carrier.from)) == 0) fault("refuses a reference that is not late");
      return false;
    }
    if (receipt.own) {
      copy_->own_handles.insert(carrier.handed->object);
    } else {
      const unsigned lineage = receipt.confirmed ? 0 : carrier.lineage;
      copy_->handles.emplace(receipt.fork, model::handle{carrier.handed->object, lineage});
      if (with_.by == defect::accepts_early && !receipt.confirmed && !again) accept_early(receipt.fork, carrier);
    }
    return !again;
  }

  void drop(held_fork fork) {  // by value: the reference may be to the erased key
    copy_->handles.erase(fork);
    if (with_.by == defect::ignores_pins) ferry::detail::reference_probe::users(protocol())[fork].pins.clear();
    protocol().drop(fork, effects);
  }

  void learn_death(int dead) {
    auto objects = ferry::detail::reference_probe::objects(protocol());
    protocol().gone(worker(dead), effects);
    if (with_.by == defect::keeps_dead_forks) {
      ferry::detail::reference_probe::objects(protocol()) = std::move(objects);
      effects.released.clear();
    }
    if (with_.by == defect::keeps_awaiting) {
      for (auto& [object, entry] : objects) {
        const auto left = ferry::detail::reference_probe::objects(protocol()).find(object);
        if (left != ferry::detail::reference_probe::objects(protocol()).end()) left->second.made = entry.made;
      }
    }
    std::erase_if(copy_->outbox, [&](const auto& control) { return control.to == worker(dead); });
    std::erase_if(copy_->calls, [&](const auto& call) { return call.second.to == dead; });
    std::erase_if(copy_->in_replies, [&](const auto& each) { return each.first == dead; });
    std::erase_if(copy_->owed, [&](const auto& each) { return each.first == dead; });
    std::erase_if(copy_->waiting, [&](const auto& each) {
      if (each.second.first != dead) return false;
      protocol().stop_awaiting(each.first, effects);
      return true;
    });
    copy_->deaths_known |= bit(dead);
  }

 private:
  void accept_early(const held_fork& fork, const message& carrier) {
    auto& entry = ferry::detail::reference_probe::users(protocol())[fork];
    if (!entry.accept_owed) return;
    entry.accept_owed = false;
    reference_control accept;
    accept.what = reference_control::kind::child_accept;
    accept.number = carrier.handed->transfer;
    effects.controls.push_back({worker(carrier.from), accept});
  }

  void inject_defect() {
    for (auto& [id, peer] : ferry::detail::reference_probe::peers(protocol())) {
      if (with_.by == defect::forgets_claims) peer.ended_claims = {};
      if (with_.by == defect::forgets_seen) peer.seen = {};
      if (with_.by == defect::forgets_withdrawals) peer.withdrawn = {};
    }
  }

  world& now_;
  const rules& with_;
  std::string& problem_;
  int actor_;
  std::shared_ptr<node> copy_;
};

}  // namespace ferry_test::model

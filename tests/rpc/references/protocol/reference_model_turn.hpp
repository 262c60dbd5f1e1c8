#pragma once

// One worker of a model world at work: its protocol, and around it what reference_table does.

#include <algorithm>
#include <iterator>

#include "reference_model.hpp"

namespace ferry_test::model {

constexpr unsigned bit(int id) { return 1U << static_cast<unsigned>(id); }
inline int id_of(const peer_incarnation& who) { return who.id.value; }

template <class Container>
auto nth(Container& of, std::size_t place) {
  return std::next(of.begin(), static_cast<std::ptrdiff_t>(place));
}

/// Onto the network.
inline void fly(world& now, message what, const rules& with) {
  if ((now.crashed & bit(what.to)) && !with.zombies) return;
  if ((now.nodes[static_cast<std::size_t>(what.to)]->heard & bit(what.from)) && !with.ghosts) return;
  now.flying.insert(std::upper_bound(now.flying.begin(), now.flying.end(), what), std::move(what));
}

/// Of an object that nobody will make, or that went with a worker: then its references may fail.
inline bool may_fail(const world& now, const object_id& object, unsigned lineage) {
  return now.given_up.contains(object) || ((bit(id_of(object.creator)) | lineage) & now.crashed) != 0;
}

/// One step of one worker.
class turn {
 public:
  turn(world& now, const rules& with, std::string& problem, int who)
      : now_(now), with_(with), problem_(problem), who_(who), copy_(std::make_shared<node>(*now.nodes[who])) {
    now.nodes[who] = copy_;
  }
  turn(const turn&) = delete;
  turn& operator=(const turn&) = delete;
  ~turn() { copy_->digest = {}; }

  node& operator*() { return *copy_; }
  node* operator->() { return copy_.get(); }
  reference_protocol& protocol() { return copy_->protocol; }
  reference_effects effects;

  void fault(std::string_view what) {
    if (now_.crashed & bit(who_)) return;  // what it thinks does not matter
    if (problem_.empty()) problem_ = "worker " + std::to_string(who_) + " " + std::string(what);
  }

  /// Does what the protocol has asked for.
  void finish() {
    spoil();
    for (auto& control : effects.controls) {
      if (with_.by == spoiled::settles_early && control.what.what == reference_control::kind::watermark) {
        control.what.number = ferry::detail::reference_probe::peer(protocol(), control.to).transfers + 1;
      }
      if (copy_->heard & bit(id_of(control.to))) fault("has something to tell a worker that it knows to be dead");
      if (!copy_->outbox.insert(control).second) fault("tells twice what is not answered yet");
      send(control);
    }
    for (const object_id& object : effects.released) copy_->values.erase(object);
    for (const object_id& object : effects.never_made) {
      if (!may_fail(now_, object, 0)) fault("gives up an object that may come");
      answer_waiting(object);
    }
    for (const held_fork& fork : effects.confirmed) {
      if (const auto handle = copy_->handles.find(fork); handle != copy_->handles.end()) handle->second.lineage = 0;
    }
    for (const auto& failure : effects.failed) {
      const auto handle = copy_->handles.find(failure.fork);
      if (handle == copy_->handles.end()) {
        fault("hears of the failure of a reference that it does not have");
        continue;
      }
      const bool owner_died = (bit(id_of(failure.fork.owner)) & now_.crashed) != 0;
      if (!owner_died && !may_fail(now_, handle->second.object, handle->second.lineage)) {
        fault("sees a reference fail for no reason");
      }
      copy_->handles.erase(handle);
    }
    effects = {};
  }

  void answer(std::pair<int, std::uint64_t> to) {
    if (copy_->heard & bit(to.first)) return;
    message back;
    back.what = message::kind::reply;
    back.from = who_;
    back.to = to.first;
    back.number = to.second;
    fly(now_, back, with_);
  }

  /// Whoever waits for the object hears how it is.
  void answer_waiting(const object_id& object) {
    std::erase_if(copy_->waiting, [&](const auto& each) {
      if (each.first == object) answer(each.second);
      return each.first == object;
    });
  }

  void send(const reference_effects::control& control) {
    message carried;
    carried.what = message::kind::control;
    carried.from = who_;
    carried.to = id_of(control.to);
    carried.control = control.what;
    fly(now_, carried, with_);
  }

  /// A call, or a reply with number `call`, that carries one of the references here.
  message with_reference(message carrier, std::size_t handle, bool own) {
    const peer_incarnation to = worker(carrier.to);
    if (own) {
      const object_id object = *nth(copy_->own_handles, handle);
      carrier.handed = protocol().transfer(object, to);
      if (with_.by == spoiled::grants_unregistered) {
        ferry::detail::reference_probe::objects(protocol())
            .at(object)
            .forks.erase({to, {ferry::detail::fork_key::numbered_by::owner, carrier.handed->transfer}});
      }
    } else {
      const auto& [fork, held] = *nth(copy_->handles, handle);
      carrier.handed = protocol().transfer(fork, to);
      carrier.lineage = bit(who_) | held.lineage;
    }
    return carrier;
  }

  void call(message request, std::optional<held_fork> uses = {}) {
    request.what = message::kind::call;
    request.from = who_;
    request.number = ++copy_->last_call;
    copy_->calls[request.number] = {request.to, request.handed ? request.handed->transfer : 0, request.makes, uses};
    fly(now_, request, with_);
  }

  void give_up(std::uint64_t number) {
    const open_call call = copy_->calls.at(number);
    copy_->calls.erase(number);
    if (call.makes) now_.given_up.insert(*call.makes);
    if (with_.by == spoiled::no_query) return;
    if (call.transfer != 0) protocol().query(worker(call.to), call.transfer, effects);
    if (call.makes) protocol().query_creation(*call.makes, effects);
  }

  /// False: it was refused, or has been here before.
  bool receive(const message& carrier) {
    if (!carrier.handed) return true;
    const auto& parent = ferry::detail::reference_probe::peer(protocol(), worker(carrier.from));
    const std::uint64_t number = carrier.handed->transfer;
    const bool again = parent.seen.contains(number) || parent.withdrawn.contains(number);
    const auto receipt = protocol().receive(*carrier.handed, worker(carrier.from), effects);
    if (receipt.refused) {
      if (!again && (copy_->heard & bit(carrier.from)) == 0) fault("refuses a reference that is not late");
      return false;
    }
    if (receipt.own) {
      copy_->own_handles.insert(carrier.handed->object);
    } else {
      const unsigned lineage = receipt.confirmed ? 0 : carrier.lineage;
      copy_->handles.emplace(receipt.fork, model::handle{carrier.handed->object, lineage});
      if (with_.by == spoiled::accepts_early && !receipt.confirmed && !again) accept_early(receipt.fork, carrier);
    }
    return !again;
  }

  void drop(held_fork fork) {  // by value: it may be the key that goes
    copy_->handles.erase(fork);
    if (with_.by == spoiled::ignores_pins) ferry::detail::reference_probe::users(protocol())[fork].pins.clear();
    protocol().drop(fork, effects);
  }

  void hear(int dead) {
    auto objects = ferry::detail::reference_probe::objects(protocol());
    protocol().gone(worker(dead), effects);
    if (with_.by == spoiled::keeps_the_dead) {
      ferry::detail::reference_probe::objects(protocol()) = std::move(objects);
      effects.released.clear();
    }
    if (with_.by == spoiled::keeps_awaiting) {
      for (auto& [object, entry] : objects) {
        const auto left = ferry::detail::reference_probe::objects(protocol()).find(object);
        if (left != ferry::detail::reference_probe::objects(protocol()).end()) left->second.made = entry.made;
      }
    }
    std::erase_if(copy_->outbox, [&](const auto& control) { return control.to == worker(dead); });
    std::erase_if(copy_->calls, [&](const auto& call) { return call.second.to == dead; });
    std::erase_if(copy_->in_replies, [&](const auto& each) { return each.first == dead; });
    std::erase_if(copy_->owed, [&](const auto& each) { return each.first == dead; });
    std::erase_if(copy_->waiting, [&](const auto& each) { return each.second.first == dead; });
    copy_->heard |= bit(dead);
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

  void spoil() {
    for (auto& [id, peer] : ferry::detail::reference_probe::peers(protocol())) {
      if (with_.by == spoiled::forgets_claims) peer.ended_claims = {};
      if (with_.by == spoiled::forgets_seen) peer.seen = {};
      if (with_.by == spoiled::forgets_withdrawals) peer.withdrawn = {};
    }
  }

  world& now_;
  const rules& with_;
  std::string& problem_;
  int who_;
  std::shared_ptr<node> copy_;
};

}  // namespace ferry_test::model

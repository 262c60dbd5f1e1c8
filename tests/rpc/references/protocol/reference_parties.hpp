#pragma once

// Workers whose controls a test delivers manually, in any order.

#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "rpc/references/protocol/reference_protocol.hpp"

namespace ferry::inline v0::detail {

/// Gives tests access to the private state of a protocol.
struct reference_probe {
  using owned_object = reference_protocol::owned_object;
  using transfer_id = reference_protocol::transfer_id;
  using transfer_state = reference_protocol::transfer_state;
  using user_fork = reference_protocol::user_fork;
  using peer_record = reference_protocol::peer_record;
  static auto& peers(reference_protocol& of) { return of.peers_; }
  static auto& objects(reference_protocol& of) { return of.objects_; }
  static auto& users(reference_protocol& of) { return of.users_; }
  static auto& transfers(reference_protocol& of) { return of.transfers_; }
  static auto& received(reference_protocol& of) { return of.received_; }
  static auto& gone(reference_protocol& of) { return of.gone_; }
  static peer_record& peer(reference_protocol& of, const peer_incarnation& peer) { return of.peers_[peer]; }
};

}  // namespace ferry::inline v0::detail

namespace ferry_test {

using ferry::detail::peer_incarnation;
using ferry::detail::reference_control;

inline peer_incarnation worker(int id) { return {{id}, {static_cast<std::uint64_t>(id) + 100}}; }

struct party {
  explicit party(int id) : protocol(worker(id)) {}
  ferry::detail::reference_protocol protocol;
  ferry::detail::reference_effects effects;  ///< accumulated; tests clear them
  [[nodiscard]] peer_incarnation self() const { return protocol.self(); }
  [[nodiscard]] bool has_no_records() const {
    const auto now = protocol.figures();
    return now.owners == 0 && now.forks == 0 && now.users == 0 && protocol.pending() == 0;
  }
};

struct parties {
  party a{0}, b{1}, c{2};
  [[nodiscard]] party* at(const peer_incarnation& peer) {
    for (party* each : {&a, &b, &c}) {
      if (each->self() == peer) return each;
    }
    return nullptr;
  }

  /// Removes and returns the first control that `from` has to send.
  ferry::detail::reference_effects::control take(party& from) {
    auto& waiting = from.effects.controls;
    if (waiting.empty()) return {};
    const auto first = waiting.front();
    waiting.erase(waiting.begin());
    return first;
  }
  /// Delivers a control and its answer.
  ferry::detail::reference_answer deliver(party& from, const ferry::detail::reference_effects::control& control) {
    party& receiver = *at(control.to);
    const auto answer = receiver.protocol.on_control(from.self(), control.what, receiver.effects);
    from.protocol.on_answer(control.to, control.what, answer, from.effects);
    return answer;
  }
  /// Delivers everything, each control twice with the second one late, until nothing waits.
  void settle() {
    std::vector<std::pair<party*, ferry::detail::reference_effects::control>> done;
    for (bool moved = true; moved;) {
      moved = false;
      for (party* each : {&a, &b, &c}) {
        while (!each->effects.controls.empty()) {
          const auto control = take(*each);
          deliver(*each, control);
          done.emplace_back(each, control);
          moved = true;
        }
      }
    }
    for (const auto& [from, control] : done) deliver(*from, control);
  }
  [[nodiscard]] bool no_records_left() const { return a.has_no_records() && b.has_no_records() && c.has_no_records(); }
};

/// `creator` makes an object at `owner`; the call has been answered.
inline ferry::detail::object_id create(party& creator, party& owner) {
  const ferry::detail::object_id object = creator.protocol.create(owner.self());
  REQUIRE(owner.protocol.begin_creation(object, owner.effects));
  owner.protocol.end_creation(object, owner.effects);
  creator.protocol.confirm_creation(object, creator.effects);
  return object;
}

}  // namespace ferry_test

// Invariants of a model world, and digests that identify worlds.

#include <algorithm>
#include <bit>
#include <type_traits>

#include "reference_model_turn.hpp"

namespace ferry_test::model {

namespace {

using ferry::detail::fork_key;
using ferry::detail::reference_probe;
using creation = reference_probe::owned_object::creation;
using knowledge = reference_protocol::knowledge;

// The probe takes mutable references; nothing here writes through them.
reference_protocol& probed(const node& at) { return const_cast<reference_protocol&>(at.protocol); }

/// Checks one world.
class inspector {
 public:
  inspector(const world& now, bool deeply) : now_(now), deeply_(deeply) {}

  std::string at_any_time() {
    for (int id = 0; id < workers; ++id) {
      if (alive(id)) look_at(id);
    }
    for (const message& each : now_.in_flight) {
      if (each.handed && alive(each.from) && alive(each.to)) look_at(each);
    }
    return problem_;
  }

  std::string at_rest() {
    for (const message& each : now_.in_flight) {
      if (alive(each.from) && alive(each.to)) fault("still has messages in flight");
    }
    std::size_t forks_known = 0;
    std::size_t forks_held = 0;
    for (int id = 0; id < workers; ++id) {
      if (!alive(id)) continue;
      const node& at = *now_.nodes[id];
      actor_ = id;
      if (!at.outbox.empty()) fault("still has controls to send");
      if (!at.calls.empty() || !at.making.empty() || !at.owed.empty() || !at.waiting.empty())
        fault("still waits for a call");
      if (at.protocol.pending() != 0) fault("waits for forks or transfers that never settle");
      forks_known += at.protocol.figures().forks;
      forks_held += at.handles.size();
      if (at.protocol.figures().users != at.handles.size()) fault("keeps a fork without handles");
      for (const auto& [object, entry] : reference_probe::objects(probed(at))) {
        if (entry.made == creation::to_come || entry.made == creation::running) fault("awaits an object for ever");
        if (entry.awaited) fault("holds an object for calls that have ended");
        if (entry.held != at.own_handles.contains(object)) fault("holds an object without handles");
        if (entry.forks.empty() && !entry.held) fault("keeps an object without references");
        if (entry.made == creation::ended && !at.values.contains(object)) fault("lost the value of an object");
      }
      for (const object_id& object : at.values) {
        if (!reference_probe::objects(probed(at)).contains(object)) fault("keeps a value without references");
      }
      if (reference_probe::received(probed(at)).size() > at.handles.size()) fault("keeps the record of a message");
    }
    actor_ = -1;
    if (forks_known != forks_held) fault("has different forks at the owners than at the holders");
    return problem_;
  }

 private:
  void fault(std::string_view what) {
    if (problem_.empty())
      problem_ = (actor_ < 0 ? "the group " : "worker " + std::to_string(actor_) + " ") + std::string(what);
  }
  void deep_fault(std::string_view what) {
    if (deeply_) fault(what);
  }
  [[nodiscard]] bool alive(int id) const { return (now_.crashed & bit(id)) == 0; }
  [[nodiscard]] bool alive(const peer_incarnation& peer) const { return alive(peer.id.value); }
  [[nodiscard]] const node& of(const peer_incarnation& peer) const {
    return *now_.nodes[static_cast<std::size_t>(peer.id.value)];
  }
  [[nodiscard]] bool may_fail(const object_id& object, unsigned lineage) const {
    return model::may_fail(now_, object, lineage);
  }
  [[nodiscard]] bool knows_fork(const object_id& object, const peer_incarnation& holder, const fork_key& key) const {
    const auto& objects = reference_probe::objects(probed(of(object.owner)));
    const auto entry = objects.find(object);
    return entry != objects.end() && entry->second.forks.contains({holder, key});
  }
  [[nodiscard]] bool was_begun(const object_id& object) const {
    const auto& objects = reference_probe::objects(probed(of(object.owner)));
    const auto entry = objects.find(object);
    if (entry == objects.end()) return false;
    return entry->second.made == creation::running || entry->second.made == creation::ended;
  }
  /// Whether calls on the object find it, now or when it has been made.
  [[nodiscard]] bool usable(const object_id& object) const {
    const node& owner = of(object.owner);
    switch (owner.protocol.look_up(object)) {
      case knowledge::here: return owner.values.contains(object);
      case knowledge::awaited: return true;
      case knowledge::deleted: break;
    }
    return false;
  }
  /// G2: the parent keeps its fork.
  [[nodiscard]] bool kept(const peer_incarnation& parent, const peer_incarnation& child, std::uint64_t transfer) const {
    reference_protocol& protocol = probed(of(parent));
    const auto& transfers = reference_probe::transfers(protocol);
    const auto state = transfers.find({child, transfer});
    if (state == transfers.end()) return false;
    if (!state->second.pinned) {
      return knows_fork(state->second.object, child, {fork_key::numbered_by::owner, transfer});
    }
    const auto fork = reference_probe::users(protocol).find(*state->second.pinned);
    return fork != reference_probe::users(protocol).end() && fork->second.pins.contains({child, transfer});
  }

  void look_at(int id) {
    actor_ = id;
    const node& at = *now_.nodes[static_cast<std::size_t>(id)];
    for (const auto& [object, entry] : reference_probe::objects(probed(at))) {
      if (entry.made != creation::to_come) continue;
      const auto calls = std::count_if(at.waiting.begin(), at.waiting.end(),
                                       [&object = object](const auto& each) { return each.first == object; });
      if (static_cast<std::size_t>(calls) != entry.awaited) deep_fault("holds an object for another number of calls");
    }
    for (const auto& [fork, entry] : reference_probe::users(probed(at))) {
      if (!alive(fork.owner)) continue;
      using standing = reference_probe::user_fork::standing;
      const auto handle = at.handles.find(fork);
      const unsigned lineage = handle == at.handles.end() ? 0 : handle->second.lineage;
      const bool hopeless = may_fail(entry.object, lineage);
      switch (entry.known) {
        case standing::confirmed:
          if (!knows_fork(entry.object, worker(id), fork.key))
            deep_fault("holds a fork that its owner has not registered");
          break;
        case standing::requested:
          if (entry.origin && alive(entry.origin->peer) && !hopeless && handle != at.handles.end() &&
              !kept(entry.origin->peer, worker(id), entry.origin->number) &&
              !knows_fork(entry.object, worker(id), fork.key)) {
            deep_fault("waits for its owner while no fork keeps the object");
          }
          break;
        case standing::creating:
          if (was_begun(entry.object) && !knows_fork(entry.object, worker(id), fork.key)) {
            deep_fault("creates an object whose owner has not registered the creator's fork");
          }
          break;
      }
      if (handle != at.handles.end() && !hopeless && !usable(entry.object)) fault("refers to a deleted object");
    }
    for (const auto& [fork, held] : at.handles) {
      if (!reference_probe::users(probed(at)).contains(fork))
        fault("has a handle of a fork that the protocol has no record of");
    }
    for (const object_id& object : at.own_handles) {
      const auto& objects = reference_probe::objects(probed(at));
      const auto entry = objects.find(object);
      if (entry == objects.end() || !entry->second.held) {
        fault("has a handle of an object that it has released");
      } else if (!may_fail(object, 0) && !usable(object)) {
        fault("has a handle of a deleted object");
      }
    }
  }

  void look_at(const message& carrier) {
    const node& child = *now_.nodes[static_cast<std::size_t>(carrier.to)];
    const object_id& object = carrier.handed->object;
    if ((child.deaths_known & bit(carrier.from)) != 0 || !alive(object.owner) || may_fail(object, carrier.lineage))
      return;
    if (reference_probe::peer(probed(child), worker(carrier.from)).seen.contains(carrier.handed->transfer)) return;
    actor_ = carrier.from;
    if (!kept(worker(carrier.from), worker(carrier.to), carrier.handed->transfer)) {
      deep_fault("does not keep a reference that it has sent on");
    }
    if (!usable(object)) fault("has sent a reference to a deleted object");
  }

  const world& now_;
  bool deeply_;
  int actor_ = -1;
  std::string problem_;
};

// ---- a digest of 128 bits: worlds with equal digests are treated as the same

class digester {
 public:
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
      word(static_cast<std::uint64_t>(value));
    } else {
      fields(value);
    }
  }
  template <class... Values>
  void all(const Values&... values) {
    (add(values), ...);
  }
  [[nodiscard]] std::array<std::uint64_t, 2> result() const { return {low_, high_}; }

 private:
  void word(std::uint64_t value) {
    low_ = (std::rotl(low_, 23) ^ value) * 0x9e3779b97f4a7c15U;
    low_ ^= low_ >> 29U;
    high_ = (std::rotl(high_, 41) + value) * 0xc2b2ae3d27d4eb4fU;
    high_ ^= high_ >> 31U;
  }
  template <class First, class Second>
  void fields(const std::pair<First, Second>& of) {
    all(of.first, of.second);
  }
  template <class T>
  void fields(const std::optional<T>& of) {
    add(of.has_value());
    if (of) add(*of);
  }
  template <class Container>
    requires requires(const Container& of) { of.begin() == of.end(); }
  void fields(const Container& of) {
    word(of.size());
    for (const auto& each : of) add(each);
  }
  void fields(const peer_incarnation& of) { add(of.id.value); }
  void fields(const object_id& of) { all(of.owner, of.creator, of.number); }
  void fields(const fork_key& of) { all(of.by, of.number); }
  void fields(const held_fork& of) { all(of.owner, of.key); }
  void fields(const handed_reference& of) { all(of.object, of.transfer); }
  void fields(const reference_control& of) { all(of.what, of.object, of.key, of.number); }
  void fields(const reference_effects::control& of) { all(of.to, of.what); }
  void fields(const handle& of) { all(of.object, of.lineage); }
  void fields(const message& of) {
    all(of.what, of.from, of.to, of.number, of.handed, of.lineage, of.makes, of.uses, of.control, of.answer);
  }
  void fields(const open_call& of) { all(of.to, of.transfer, of.makes, of.uses); }
  void fields(const ferry::detail::number_set& of) {
    // The numbers in a model are small.
    std::uint64_t bits = 0;
    for (std::uint64_t number = 0; number < 64; ++number) bits |= std::uint64_t{of.contains(number)} << number;
    word(bits);
  }
  void fields(const reference_probe::peer_record& of) {
    all(of.claims, of.transfers, of.left_out, of.watermark_sent, of.ended_claims, of.seen, of.withdrawn);
  }
  void fields(const reference_probe::owned_object& of) { all(of.made, of.held, of.awaited, of.queried, of.forks); }
  void fields(const reference_probe::user_fork& of) {
    all(of.object, of.known, of.dropped, of.queried, of.origin, of.accept_owed, of.pins);
  }
  void fields(const reference_probe::transfer_state& of) { all(of.object, of.pinned, of.arrived, of.queried); }
  void fields(const reference_probe::transfer_id& of) { all(of.peer, of.number); }

  std::uint64_t low_ = 0x243f6a8885a308d3U;
  std::uint64_t high_ = 0x13198a2e03707344U;
};

std::array<std::uint64_t, 2> digest(const node& at) {
  digester sum;
  reference_protocol& protocol = probed(at);
  sum.all(reference_probe::objects(protocol), reference_probe::users(protocol), reference_probe::transfers(protocol),
          reference_probe::received(protocol), reference_probe::gone(protocol));
  for (const auto& [peer, record] : reference_probe::peers(protocol)) {
    if (!(record == reference_probe::peer_record{})) sum.all(peer, record);
  }
  sum.all(at.outbox, at.handles, at.own_handles, at.values, at.making, at.owed, at.waiting, at.calls, at.last_call,
          at.in_replies, at.deaths_known);
  return sum.result();
}

std::string name_of(const object_id& object) {
  return "object " + std::to_string(object.creator.id.value) + "." + std::to_string(object.number) + " of " +
         std::to_string(object.owner.id.value);
}

std::string name_of(const message& each) {
  static constexpr std::array<const char*, 4> kinds{"call", "reply", "control", "answer"};
  static constexpr std::array<const char*, 7> controls{
      "", "fork_request", "child_accept", "user_delete", "transfer_query", "creation_query", "watermark"};
  const bool about_control = each.what == message::kind::control || each.what == message::kind::answer;
  std::string text = kinds.at(static_cast<std::size_t>(each.what));
  text += " " + std::to_string(each.from) + ">" + std::to_string(each.to);
  if (!about_control) text += " #" + std::to_string(each.number);
  if (each.handed) text += " with " + name_of(each.handed->object) + " as " + std::to_string(each.handed->transfer);
  if (each.uses) text += " of " + name_of(*each.uses);
  if (each.makes) text += " making " + name_of(*each.makes);
  if (about_control) {
    text += std::string(" ") + controls.at(static_cast<std::size_t>(each.control.what)) + " ";
    text += std::to_string(each.control.number + each.control.key.number);
  }
  if (each.what == message::kind::answer) text += each.answer == reference_answer::done ? ": done" : ": too late";
  return text;
}

}  // namespace

std::string check(const world& now, bool deeply) { return inspector(now, deeply).at_any_time(); }
std::string check_at_rest(const world& now) { return inspector(now, true).at_rest(); }

std::array<std::uint64_t, 2> digest(const world& of) {
  digester sum;
  for (const auto& at : of.nodes) {
    // Nodes are shared by many worlds; each is digested once.
    if (at->digest == std::array<std::uint64_t, 2>{}) at->digest = digest(*at);
    sum.all(at->digest);
  }
  sum.all(of.in_flight, of.crashed, of.created, of.handed, of.used, of.replies, of.losses, of.duplicates, of.stop_level,
          of.unsent, of.impatience, of.crashes, of.given_up);
  return sum.result();
}

std::string describe(const world& before, const action& step) {
  static constexpr std::array<const char*, 21> names{"arrives",
                                                     "arrives, its answer is lost",
                                                     "is lost",
                                                     "was not sent",
                                                     "is duplicated",
                                                     "resends",
                                                     "has made an object",
                                                     "replies",
                                                     "ends waiting call",
                                                     "gives up call",
                                                     "gives up early call",
                                                     "queries a reply",
                                                     "queries a reply in flight",
                                                     "learns of the death of",
                                                     "crashes",
                                                     "drops handle",
                                                     "drops its own object",
                                                     "makes an object",
                                                     "sends a handle",
                                                     "sends its own object",
                                                     "calls an object"};
  using event = action::kind;
  const std::string name = names.at(static_cast<std::size_t>(step.what));
  switch (step.what) {
    case event::deliver:
    case event::deliver_unanswered:
    case event::lose:
    case event::duplicate:
    case event::lose_unsent: return name_of(before.in_flight[step.which]) + " " + name;
    default: break;
  }
  return "worker " + std::to_string(step.actor) + " " + name + " " + std::to_string(step.which) +
         (step.how != 0 ? " (" + std::to_string(step.how) + ")" : "");
}

}  // namespace ferry_test::model

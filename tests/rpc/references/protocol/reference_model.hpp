#pragma once

// A model of workers that share references, for walking through everything that can happen to them.
//
// The protocol is the real one. Around it the model plays what reference_table does (it sends controls and repeats them until
// they are answered), the application (it makes objects, hands references on in calls and replies, drops its handles, gives
// calls up), and a network that delivers what it carries in any order, sometimes twice, sometimes never. One worker may crash:
// the others hear of it sooner or later, each at its own time.

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference_parties.hpp"

namespace ferry_test::model {

using ferry::detail::handed_reference;
using ferry::detail::held_fork;
using ferry::detail::object_id;
using ferry::detail::reference_answer;
using ferry::detail::reference_effects;
using ferry::detail::reference_protocol;

inline constexpr int workers = 3;

/// Ways to spoil the protocol, each of which the model must find out.
enum class spoiled : std::uint8_t {
  nothing,
  accepts_early,        ///< a child frees its parent before the owner knows it
  forgets_claims,       ///< the owner does not remember claims that have ended
  ignores_pins,         ///< a fork ends although a hand-over needs it
  keeps_the_dead,       ///< the forks of the dead are not released
  forgets_seen,         ///< a child does not remember which hand-overs it has seen
  forgets_withdrawals,  ///< a child takes one that it has withdrawn for one that has arrived
  grants_unregistered,  ///< the owner does not note the forks that it gives away
  never_repeats,        ///< a control that was lost stays lost
  no_query,             ///< nobody asks for a message that may be lost
  keeps_awaiting,       ///< the owner still expects what a dead creator was to make
  settles_early,        ///< a parent calls hand-overs settled that are under way
};

/// What may happen in one world.
struct rules {
  std::string_view name = {};
  /// Objects that exist in the beginning: who made them, and where. An owner's own have a handle there.
  std::vector<std::pair<int, int>> there = {};
  /// Each at most once, at any time: who makes an object, and where.
  std::vector<std::pair<int, int>> creates = {};
  /// Each at most once, at any time: who hands any of its references on in a call, and to whom.
  std::vector<std::pair<int, int>> hands = {};
  /// Each at most once, at any time: who calls the owner of any of its references, which it keeps until that is answered.
  std::vector<int> uses = {};
  bool arguments = false;  ///< calls that make an object may carry a reference
  int replies = 0;         ///< how many replies carry a reference, any that the callee has
  int losses = 0;          ///< how many messages are lost
  int duplicates = 0;      ///< how many arrive twice
  int stop_level = 0;      ///< how many calls and replies are given up although they are still on their way
  int unsent = 0;          ///< how many calls are found not to have been sent
  int crashes = 0;
  bool ghosts = false;      ///< messages of a dead worker may arrive even after its death is known
  bool zombies = false;     ///< who is said to be dead goes on
  bool tells_gaps = false;  ///< of hand-overs that did not arrive each is told at once; otherwise none ever is
  spoiled by = spoiled::nothing;
  bool deeply = true;  ///< see check()
};

struct message {
  enum class kind : std::uint8_t { call, reply, control, answer };
  kind what{};
  int from = 0;
  int to = 0;
  std::uint64_t number = 0;  ///< of the call
  std::optional<handed_reference> handed;
  unsigned lineage = 0;  ///< the workers whose forks keep the object until the owner knows the new one
  std::optional<object_id> makes;
  std::optional<object_id> uses;
  reference_control control;
  reference_answer answer{};
  friend auto operator<=>(const message&, const message&) noexcept = default;
};

struct handle {
  object_id object;
  unsigned lineage = 0;  ///< as of a message; none if the owner knows the fork
};

struct open_call {
  int to = 0;
  std::uint64_t transfer = 0;  ///< none: 0
  std::optional<object_id> makes;
  std::optional<held_fork> uses;
};

/// One worker: the protocol, and what table and application know beside it.
struct node {
  explicit node(int id, std::uint64_t left_out = reference_protocol::most_left_out) : protocol(worker(id), left_out) {}
  reference_protocol protocol;
  std::set<reference_effects::control> outbox;  ///< not answered
  std::map<held_fork, handle> handles;          ///< that have not failed
  std::set<object_id> own_handles;
  std::set<object_id> values;
  std::map<object_id, std::pair<int, std::uint64_t>> making;              ///< for which caller, in which call
  std::set<std::pair<int, std::uint64_t>> owed;                           ///< replies: caller, call
  std::set<std::pair<object_id, std::pair<int, std::uint64_t>>> waiting;  ///< for objects: caller, call
  std::map<std::uint64_t, open_call> calls;
  std::uint64_t last_call = 0;
  std::set<std::pair<int, std::uint64_t>> in_replies;  ///< hand-overs whose fate is not known
  unsigned heard = 0;                                  ///< of these deaths
  mutable std::array<std::uint64_t, 2> digest{};       ///< of everything above, once somebody has asked
};

struct world {
  std::array<std::shared_ptr<const node>, workers> nodes;
  std::vector<message> flying;  ///< in order of their content
  unsigned crashed = 0;
  unsigned created = 0;  ///< bits: which of rules::creates
  unsigned handed = 0;
  unsigned used = 0;
  int replies = 0, losses = 0, duplicates = 0, stop_level = 0, unsent = 0, crashes = 0;  ///< left
  std::set<object_id> given_up;                                                          ///< their creators did
};

struct action {
  enum class kind : std::uint8_t {
    // The network: `which` is the message.
    deliver,
    deliver_unanswered,  ///< the answer is lost
    lose,
    lose_unsent,  ///< and its sender knows
    duplicate,
    // A worker.
    resend,
    end_creation,
    reply,
    give_up,        ///< a call that is lost
    lose_patience,  ///< with one that is not
    query,          ///< a reply
    query_early,
    hear,  ///< of a death
    crash,
    // The application.
    drop,
    drop_own,
    create,
    hand,
    hand_own,
    use,
  };
  kind what{};
  bool must = false;  ///< happens at last
  int who = 0;
  std::size_t which = 0;  ///< of its calls, handles, ...
  std::size_t how = 0;
};

/// The beginning of a world, its events, and what is wrong with it.
[[nodiscard]] world begin(const rules& with);
[[nodiscard]] std::vector<action> actions(const world& now, const rules& with);
/// What is wrong with the step itself is written to `problem`.
[[nodiscard]] world apply(const world& before, const action& step, const rules& with, std::string& problem);
[[nodiscard]] std::string describe(const world& before, const action& step);
/// What is wrong with a world at any time; empty if nothing is. `deeply`: not only what an application would notice, but also
/// what must be true inside for that never to happen.
[[nodiscard]] std::string check(const world& now, bool deeply);
/// What is wrong with a world in which nothing must happen any more.
[[nodiscard]] std::string check_at_rest(const world& now);
[[nodiscard]] std::array<std::uint64_t, 2> digest(const world& of);

struct outcome {
  std::size_t states = 0;
  std::size_t steps = 0;
  std::size_t at_rest = 0;
  std::string problem;             ///< empty: none
  std::vector<std::string> story;  ///< the shortest way there
};
/// Walks through everything that may happen.
[[nodiscard]] outcome explore(const rules& with);

}  // namespace ferry_test::model

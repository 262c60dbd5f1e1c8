#pragma once

// A model of workers that share references, for exploring all possible event orders.
//
// The protocol is the real one. Around it the model simulates reference_table (it sends controls and resends them until
// they are answered), the application (it makes objects, sends references on in calls and replies, drops its handles,
// gives up calls), and a network that delivers messages in any order, sometimes twice, sometimes never. One worker may
// crash; each of the others learns of it at a time of its own.

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

/// Injected protocol defects; the model must detect each of them.
enum class defect : std::uint8_t {
  nothing,
  accepts_early,        ///< a child releases its parent before the owner has registered the child
  forgets_claims,       ///< the owner does not record claims that have ended
  ignores_pins,         ///< a fork ends although a transfer pins it
  keeps_dead_forks,     ///< the forks of dead workers are not released
  forgets_seen,         ///< a child does not record which transfers it has seen
  forgets_withdrawals,  ///< a child treats a withdrawn transfer as one that has arrived
  grants_unregistered,  ///< the owner does not register the forks that it sends
  never_repeats,        ///< a control that was lost stays lost
  no_query,             ///< no query follows a message that may be lost
  keeps_awaiting,       ///< the owner still expects the creating call of a dead creator
  settles_early,        ///< a parent's watermark covers transfers that are in flight
};

/// The events that are allowed in one world.
struct rules {
  std::string_view name = {};
  bool large = false;  ///< takes most of the time; a sanitizer, which finds nothing new in it, leaves it out
  /// Objects that exist initially: (creator, owner). An owner's own objects have a handle there.
  std::vector<std::pair<int, int>> there = {};
  /// Creations, each at most once, at any time: (creator, owner).
  std::vector<std::pair<int, int>> creates = {};
  /// Calls that carry one of the caller's references, each at most once, at any time: (caller, callee).
  std::vector<std::pair<int, int>> hands = {};
  /// Callers that call the owner of one of their references, each at most once, at any time; the reference is kept
  /// until the answer.
  std::vector<int> uses = {};
  bool arguments = false;  ///< calls that make an object may carry a reference
  int replies = 0;         ///< number of replies that carry a reference, any that the callee has
  int losses = 0;          ///< number of lost messages
  int duplicates = 0;      ///< number of duplicated messages
  int stop_level = 0;      ///< number of calls and replies that are given up while still in flight
  int unsent = 0;          ///< number of calls that turn out not to have been sent
  int impatience = 0;      ///< number of calls that end while they wait for their object
  int crashes = 0;
  bool ghosts = false;            ///< messages of a dead worker may arrive even after its death is known
  bool zombies = false;           ///< a worker declared dead continues to run
  bool sends_watermarks = false;  ///< a watermark follows each transfer that did not arrive; otherwise there are none
  defect by = defect::nothing;
  bool deeply = true;  ///< see check()
};

struct message {
  enum class kind : std::uint8_t { call, reply, control, answer };
  kind what{};
  int from = 0;
  int to = 0;
  std::uint64_t number = 0;  ///< of the call
  std::optional<handed_reference> handed;
  unsigned lineage = 0;  ///< the workers whose forks keep the object until the owner has registered the new one
  std::optional<object_id> makes;
  std::optional<object_id> uses;
  reference_control control;
  reference_answer answer{};
  friend auto operator<=>(const message&, const message&) noexcept = default;
};

struct handle {
  object_id object;
  unsigned lineage = 0;  ///< as in a message; none once the owner has registered the fork
};

struct open_call {
  int to = 0;
  std::uint64_t transfer = 0;  ///< none: 0
  std::optional<object_id> makes;
  std::optional<held_fork> uses;
};

/// One worker: the protocol, and the state of its reference_table and application.
struct node {
  explicit node(int id, std::uint64_t left_out = reference_protocol::most_left_out) : protocol(worker(id), left_out) {}
  reference_protocol protocol;
  std::set<reference_effects::control> outbox;  ///< not answered
  std::map<held_fork, handle> handles;          ///< that have not failed
  std::set<object_id> own_handles;
  std::set<object_id> values;
  std::map<object_id, std::pair<int, std::uint64_t>> making;              ///< object -> (caller, call)
  std::set<std::pair<int, std::uint64_t>> owed;                           ///< replies: caller, call
  std::set<std::pair<object_id, std::pair<int, std::uint64_t>>> waiting;  ///< for objects: caller, call
  std::map<std::uint64_t, open_call> calls;
  std::uint64_t last_call = 0;
  std::set<std::pair<int, std::uint64_t>> in_replies;  ///< (receiver, transfer) of replies whose arrival is unknown
  unsigned deaths_known = 0;                           ///< the deaths that this worker has learned of
  mutable std::array<std::uint64_t, 2> digest{};       ///< of everything above, computed on demand
};

struct world {
  std::array<std::shared_ptr<const node>, workers> nodes;
  std::vector<message> in_flight;  ///< in order of their content
  unsigned crashed = 0;
  unsigned created = 0;  ///< bits: which of rules::creates
  unsigned handed = 0;
  unsigned used = 0;
  int replies = 0, losses = 0, duplicates = 0, stop_level = 0, unsent = 0, impatience = 0,
      crashes = 0;               ///< left
  std::set<object_id> given_up;  ///< objects whose creators gave up the call
};

struct action {
  enum class kind : std::uint8_t {
    // The network: `which` is the message.
    deliver,
    deliver_unanswered,  ///< the answer is lost
    lose,
    lose_unsent,  ///< and the sender is informed
    duplicate,
    // A worker.
    resend,
    end_creation,
    reply,
    stop_waiting,   ///< end a call that waits for its object
    give_up,        ///< end a call that is lost
    give_up_early,  ///< end a call that is still in flight
    query,          ///< a reply
    query_early,
    learn_death,  ///< learn of a death
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
  bool must = false;  ///< happens eventually
  int actor = 0;
  std::size_t which = 0;  ///< of its calls, handles, ...
  std::size_t how = 0;
};

/// The initial world, and the possible events of a world.
[[nodiscard]] world begin(const rules& with);
[[nodiscard]] std::vector<action> actions(const world& now, const rules& with);
/// Applies one event. Writes what is wrong with the step itself to `problem`.
[[nodiscard]] world apply(const world& before, const action& step, const rules& with, std::string& problem);
[[nodiscard]] std::string describe(const world& before, const action& step);
/// Checks the invariants that hold at any time; returns the violation, or empty. `deeply`: checks internal invariants
/// as well as those that an application can observe.
[[nodiscard]] std::string check(const world& now, bool deeply);
/// Checks a world without pending events.
[[nodiscard]] std::string check_at_rest(const world& now);
[[nodiscard]] std::array<std::uint64_t, 2> digest(const world& of);

struct outcome {
  std::size_t states = 0;
  std::size_t steps = 0;
  std::size_t at_rest = 0;
  std::string problem;             ///< empty: none
  std::vector<std::string> trace;  ///< the shortest sequence of steps to it
};
/// Explores all reachable states.
[[nodiscard]] outcome explore(const rules& with);

}  // namespace ferry_test::model

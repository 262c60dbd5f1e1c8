#pragma once

// One worker's view of which worker holds which reference, and the control messages that it must send. Pure
// bookkeeping: nothing here locks, sends, waits or touches user objects; reference_table does. So a test can enumerate
// every order of events.
//
// Terms. The *owner* is the worker that has the object. A reference at another worker is a *fork*, its worker the
// *holder*. A holder that sends a reference on is the *parent*, and the fork that this creates is the *child*. An
// object's *creator* is the worker whose call made it.
//
// Numbers. Messages may arrive in any order and more than once, so each side must distinguish new messages from late
// ones. Two kinds of numbers do that:
//   claim     drawn by a holder for one owner. Names a fork at that owner, and the object that the holder creates there.
//   transfer  drawn by a parent for one child worker. Names one reference in one message.
// Both are drawn consecutively from 1, so that the receiver's set of seen numbers stays a few intervals. A number is
// never drawn twice, even if its message was never sent, so a recorded number stays valid. Transfers that were not
// sent, or were withdrawn, would leave permanent gaps in that set; so a parent that has skipped some sends a
// *watermark*: the number below which none of its transfers is in flight.
//
// Invariants:
//   G1  Every fork that ends is reported to the owner, again and again until the owner has answered.
//   G2  A parent keeps its own fork until it knows that the owner has registered the child, or that there is none.
//   So while any fork exists, the owner has at least one registered and keeps the object.
//
// Of a worker that has terminated only that fact is recorded: messages that still arrive from it are refused, and
// controls for it are discarded. The last `most_gone` of them are recorded, for very late messages. Where a backend has
// no incarnation numbers, a worker that rejoins under the same id cannot be distinguished from its predecessor.
//
// Not thread-safe. Every function may be called twice with the same message. begin_creation(), await() and receive(),
// which process messages, have the strong guarantee on std::bad_alloc.

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ferry/base/error.hpp>
#include <ferry/base/ids.hpp>

#include "number_set.hpp"

namespace ferry::inline v0::detail {

/// One incarnation of one worker. `incarnation` is zero where the backend does not provide it.
struct peer_incarnation {
  worker_id id;
  incarnation_id incarnation;
  friend constexpr auto operator<=>(const peer_incarnation&, const peer_incarnation&) noexcept = default;
};

/// Identifies one object uniquely in the whole group, for the group's lifetime.
struct object_id {
  peer_incarnation owner;
  peer_incarnation creator;
  std::uint64_t number = 0;  ///< the creator's claim at the owner
  friend constexpr auto operator<=>(const object_id&, const object_id&) noexcept = default;
};

/// Identifies one fork between its owner and its holder.
struct fork_key {
  enum class numbered_by : std::uint8_t {
    holder,  ///< a claim
    owner,   ///< the transfer in which the owner itself sent it: registered at the owner before it reaches the holder
  };
  numbered_by by{};
  std::uint64_t number = 0;
  friend constexpr auto operator<=>(const fork_key&, const fork_key&) noexcept = default;
};

/// A fork that this worker holds.
struct held_fork {
  peer_incarnation owner;
  fork_key key;
  friend constexpr auto operator<=>(const held_fork&, const held_fork&) noexcept = default;
};

/// A reference in a message, as it travels.
struct handed_reference {
  object_id object;
  std::uint64_t transfer = 0;
  friend constexpr auto operator<=>(const handed_reference&, const handed_reference&) noexcept = default;
};

/// Control messages between workers. Each is resent until it is answered or its receiver has terminated. The same
/// control is not issued again while its answer is pending.
struct reference_control {
  enum class kind : std::uint8_t {
    fork_request = 1,    ///< holder to owner: I hold `object` as claim `number`
    child_accept = 2,    ///< child to parent: the owner has registered the fork of your transfer `number`, or need not
    user_delete = 3,     ///< holder to owner: my fork `key` of `object` has ended
    transfer_query = 4,  ///< parent to child: has transfer `number` arrived? If not, refuse it from now on
    creation_query = 5,  ///< creator to owner: has the call that makes `object` arrived? If not, refuse it from now on
    watermark = 6,       ///< parent to child: no more of my transfers below `number` will arrive
  };
  kind what{};
  object_id
      object;  ///< unused by child_accept and watermark; of a transfer_query the number: of the call, if it is in a reply
  fork_key key;  ///< used by user_delete
  std::uint64_t number = 0;
  friend auto operator<=>(const reference_control&, const reference_control&) noexcept = default;
};

enum class reference_answer : std::uint8_t {
  done = 0,      ///< registered; for queries: it has arrived
  too_late = 1,  ///< for fork_request: the object was deleted; for queries: it has not arrived, and will be refused
  not_yet = 2,   ///< for transfer_query: it may still arrive, with the reply that its receiver awaits; ask again
};

/// Results of events. Functions append to it.
struct reference_effects {
  struct control {
    peer_incarnation to;
    reference_control what;
    friend auto operator<=>(const control&, const control&) noexcept = default;
  };
  std::vector<control> controls;  ///< to be sent, possibly to this worker itself
  /// Objects of this worker without references: their values, if any, may be destroyed. An object that has not been
  /// made yet may still be made when its call arrives.
  std::vector<object_id> released;
  /// Objects of this worker that have references, but whose creating call will not arrive.
  std::vector<object_id> never_made;
  std::vector<held_fork> confirmed;  ///< the owner has registered them
  struct failure {
    held_fork fork;
    errc why{};  ///< peer_lost: the owner has terminated; reference_deleted: the object was deleted
    friend auto operator<=>(const failure&, const failure&) noexcept = default;
  };
  /// Forks that have handles but no object any more; the protocol has no record of them left.
  std::vector<failure> failed;

  /// Room for what `events` events add that are about one fork or object each: then they take no memory here.
  void reserve(std::size_t events) {
    const auto more = [&](auto& list, std::size_t each) { reserve_more(list, events * each); };
    more(controls, 3);
    more(released, 1);
    more(never_made, 1);
    more(confirmed, 1);
    more(failed, 1);
  }
  /// Keeps the memory, unless it is much.
  void clear() noexcept {
    if (controls.capacity() > most_kept || released.capacity() > most_kept) {
      *this = {};
      return;
    }
    controls.clear();
    released.clear();
    never_made.clear();
    confirmed.clear();
    failed.clear();
  }

 private:
  static constexpr std::size_t most_kept = 4096;
  template <class T>
  static void reserve_more(std::vector<T>& list, std::size_t count) {
    if (list.capacity() - list.size() < count) list.reserve(std::max(list.size() + count, 2 * list.size()));
  }
};

/// The references of one worker. Value type.
class reference_protocol {
 public:
  static constexpr std::size_t most_gone = 4096;
  static constexpr std::uint64_t most_left_out = 64;

  /// `left_out`: number of skipped transfers after which their receiver gets a watermark.
  explicit reference_protocol(peer_incarnation self, std::uint64_t left_out = most_left_out)
      : self_(self), most_left_out_(left_out) {}
  [[nodiscard]] peer_incarnation self() const noexcept { return self_; }

  // ---- at the owner

  /// A new object, made locally rather than by a call, with handles here.
  object_id own();
  /// The owner has handles to the object, or none are left. No effect on an object without a record here.
  void hold_locally(const object_id& object);
  void drop_locally(const object_id& object, reference_effects& effects);
  /// The call that makes `object` has arrived. Returns false if it is late (withdrawn or a duplicate) and must not run.
  /// Call it for every creating call before answering it, even with an error; end_creation follows. The caller must
  /// check that the call comes from the creator.
  bool begin_creation(const object_id& object, reference_effects& effects);
  /// That call has ended: from now on the object lives as long as there are references to it.
  void end_creation(const object_id& object, reference_effects& effects);
  enum class knowledge : std::uint8_t {
    here,     ///< made, or being made
    awaited,  ///< its creating call may still arrive; there may be references to it already
    deleted,  ///< deleted, or will never be made
  };
  /// Looks up an object of this worker, for a call on it that has arrived.
  [[nodiscard]] knowledge look_up(const object_id& object) const;
  /// A call here begins to wait for an awaited object, which is held until it is here or never_made, or until all calls
  /// that wait for it have ended. Returns false if the object is not awaited: then nothing is recorded.
  bool await(const object_id& object);
  /// A call for which await() returned true has ended. No effect once the object is here or never_made.
  void stop_awaiting(const object_id& object, reference_effects& effects);

  // ---- at a holder

  /// A call that makes an object at `owner` is about to be sent. For an owner other than this worker the fork is
  /// pending; for this worker itself the object is registered at once and held locally, as by own(). Its creation
  /// counts as a separate fork until confirm_creation, not_created or an answer to query_creation. Nothing is recorded
  /// for an owner that has terminated.
  object_id create(peer_incarnation owner);
  /// The fork of an object that this worker creates.
  [[nodiscard]] held_fork creating_fork(const object_id& object) const noexcept {
    return {object.owner, {fork_key::numbered_by::holder, object.number}};
  }
  /// That call was never sent. The fork ends and the owner is notified, since the fork may have been transferred
  /// already. Does not report existing handles as failed.
  void not_created(const object_id& object, reference_effects& effects);
  /// The owner has answered that call, with whatever result: the call has arrived.
  void confirm_creation(const object_id& object, reference_effects& effects);
  /// That call ended without an answer: queries the owner. The handles have failed already; the fork stays until they
  /// are destroyed.
  void query_creation(const object_id& object, reference_effects& effects);
  /// The last handle of a fork was destroyed. The fork ends once its owner has registered it and no transfer pins it.
  void drop(const held_fork& fork, reference_effects& effects);
  [[nodiscard]] bool confirmed(const held_fork& fork) const;

  // ---- references in messages

  /// Puts a reference of this worker (to its own object, held locally, or through `fork`, which has handles and has not
  /// failed) into a message to `to`. Follow it by not_sent, arrived or query; the pin on the fork may end earlier, by
  /// the child's controls. For a fork that has ended it returns number 0, which must not be sent.
  handed_reference transfer(const object_id& own_object, peer_incarnation to);
  handed_reference transfer(const held_fork& fork, peer_incarnation to);
  /// That message was not sent, and never will be. (Its number stays a gap in the child's set of seen numbers.)
  void not_sent(peer_incarnation to, std::uint64_t transfer, reference_effects& effects);
  /// That message was answered: it has arrived, and receive() was called for each reference in it. If that is not
  /// certain (the child could not decode it), call query instead.
  void arrived(peer_incarnation to, std::uint64_t transfer, reference_effects& effects);
  /// Whether that message has arrived is unknown: queries the child unless the transfer is settled.
  /// `call`: that of the reply which it travels in; 0: none.
  void query(peer_incarnation to, std::uint64_t transfer, reference_effects& effects, std::uint64_t call = 0);
  /// No record of that transfer is left.
  [[nodiscard]] bool settled(peer_incarnation to, std::uint64_t transfer) const;

  struct receipt {
    bool refused = false;    ///< late: withdrawn, or a duplicate of a transfer whose fork has ended
    bool own = false;        ///< the object is this worker's: held locally from now on (look_up says whether it exists)
    held_fork fork;          ///< otherwise. If the owner has terminated, the same effects report its failure
    bool confirmed = false;  ///< of the fork
  };
  /// A reference in a message has arrived from `from`. A duplicate of a message yields the same fork again as long as
  /// that fork has handles.
  receipt receive(const handed_reference& reference, peer_incarnation from, reference_effects& effects);

  // ---- controls: the caller must ensure that they are from and for exactly these incarnations. Ignores late answers.

  /// Whether that transfer has arrived, or is refused.
  [[nodiscard]] bool knows_transfer(peer_incarnation from, std::uint64_t number) const;
  reference_answer on_control(peer_incarnation from, const reference_control& control, reference_effects& effects);
  void on_answer(peer_incarnation from, const reference_control& control, reference_answer answer,
                 reference_effects& effects);

  // ---- workers that terminate

  /// That incarnation has died or left the group: its forks are released, references to its objects fail, and nothing
  /// waits for it. The caller must discard controls that are queued for it or wait for its answer.
  void gone(peer_incarnation peer, reference_effects& effects);

  [[nodiscard]] bool is_gone(const peer_incarnation& peer) const;

  /// Retries releases that drop(), drop_locally() or end_creation() abandoned with std::bad_alloc.
  void end_what_is_free(reference_effects& effects);

  // ---- shutdown

  /// Forks that their owner has not registered yet, and transfers that are not settled.
  [[nodiscard]] std::size_t pending() const;
  /// Ends all forks as if their handles were destroyed; pending and pinned ones end as soon as they can.
  void drop_all(reference_effects& effects);

  // ---- figures

  struct counts {
    std::size_t owners = 0;            ///< objects here that other workers refer to, or that are being made
    std::size_t forks = 0;             ///< of these
    std::size_t expected = 0;          ///< objects here that are referred to or called, and have yet to be made
    std::size_t users = 0;             ///< forks of this worker
    std::size_t pending_users = 0;     ///< of these, not registered by their owner
    std::size_t pending_children = 0;  ///< transfers that are not settled
  };
  [[nodiscard]] counts figures() const;
  struct fork_here {
    object_id object;
    peer_incarnation holder;
    fork_key key;
  };
  /// Forks that other workers hold of objects here.
  [[nodiscard]] std::vector<fork_here> forks() const;

  friend bool operator==(const reference_protocol&, const reference_protocol&) = default;

 private:
  friend struct reference_probe;  // tests read and corrupt the state through it

  /// An object of this worker.
  struct owned_object {
    enum class creation : std::uint8_t { to_come, running, ended, never };
    creation made = creation::to_come;
    bool held = false;        ///< by handles here
    bool queried = false;     ///< this worker is its creator and has queried itself
    std::size_t awaited = 0;  ///< number of calls here that wait for it
    std::set<std::pair<peer_incarnation, fork_key>> forks;
    friend bool operator==(const owned_object&, const owned_object&) = default;
  };
  /// A transfer, with its other end.
  struct transfer_id {
    peer_incarnation peer;
    std::uint64_t number = 0;
    friend constexpr auto operator<=>(const transfer_id&, const transfer_id&) noexcept = default;
  };
  /// A fork of this worker.
  struct user_fork {
    enum class standing : std::uint8_t { creating, requested, confirmed };
    object_id object;
    standing known = standing::requested;
    bool dropped = false;               ///< no handles
    bool queried = false;               ///< the owner has been asked whether the creating call arrived
    std::optional<transfer_id> origin;  ///< the transfer that brought it, unless the owner sent it
    bool accept_owed = false;           ///< to the origin
    std::set<transfer_id> pins;         ///< transfers that need it
    friend bool operator==(const user_fork&, const user_fork&) = default;
  };
  /// A transfer of this worker that is not settled.
  struct transfer_state {
    object_id object;
    std::optional<held_fork> pinned;  ///< none: of an own object, where the child's fork is registered already
    bool arrived = false;
    bool queried = false;
    friend bool operator==(const transfer_state&, const transfer_state&) = default;
  };
  /// State about another worker, or about this one as its own peer.
  struct peer_record {
    std::uint64_t claims = 0;          ///< the last that was drawn for it
    std::uint64_t transfers = 0;       ///< the last that was drawn for it
    std::uint64_t left_out = 0;        ///< of these, not sent or withdrawn since the last watermark
    std::uint64_t watermark_sent = 1;  ///< the last watermark that was sent to it
    number_set ended_claims;           ///< of its claims here
    number_set seen;                   ///< of its transfers to this worker: arrived or withdrawn
    number_set withdrawn;              ///< of these, the withdrawn ones
    friend bool operator==(const peer_record&, const peer_record&) = default;
  };
  using objects = std::map<object_id, owned_object>;
  using users = std::map<held_fork, user_fork>;

  [[nodiscard]] bool claim_ended(const peer_incarnation& holder, std::uint64_t claim) const;
  [[nodiscard]] bool may_come(const object_id& object) const;
  objects::iterator find_or_expect(const object_id& object, reference_effects& effects);
  void release_if_free(objects::iterator object, reference_effects& effects);
  void mark_never_made(owned_object& entry, const object_id& object, reference_effects& effects);
  void end_fork(const object_id& object, peer_incarnation holder, const fork_key& key, reference_effects& effects);
  reference_answer on_fork_request(peer_incarnation from, const object_id& object, std::uint64_t claim,
                                   reference_effects& effects);
  reference_answer on_transfer_query(peer_incarnation from, std::uint64_t number);
  reference_answer on_creation_query(peer_incarnation from, const object_id& object, reference_effects& effects);

  receipt receive_own(const handed_reference& reference, peer_incarnation from, number_set& seen,
                      reference_effects& effects);
  /// Ends what depends on workers for which `over` is true. Can be repeated, if it runs out of memory.
  template <class Over>
  void end_with(const Over& over, reference_effects& effects);
  void end_if_free(users::iterator fork, reference_effects& effects);
  void forget(users::iterator fork);
  void confirm(users::iterator fork, reference_effects& effects);
  void fail(users::iterator fork, errc why, reference_effects& effects);
  void accept(users::iterator fork, reference_effects& effects);
  void unpin(const held_fork& fork, const transfer_id& transfer, reference_effects& effects);
  void undo(const transfer_id& transfer, reference_effects& effects);
  void leave_out(const peer_incarnation& peer, reference_effects& effects);
  void settle_arrived(const transfer_id& transfer);
  void settle_accepted(const transfer_id& transfer, reference_effects& effects);

  std::uint64_t draw_claim(const peer_incarnation& owner);

  peer_incarnation self_;
  std::uint64_t most_left_out_;
  std::map<peer_incarnation, peer_record> peers_;  // without terminated ones
  std::set<peer_incarnation> gone_;                // the last most_gone terminated ones
  std::deque<peer_incarnation> order_of_gone_;
  // Claims at terminated owners: they name nothing there, and differ from all claims drawn before.
  std::uint64_t unusable_claims_ = std::uint64_t{1} << 63U;
  objects objects_;
  users users_;
  std::map<transfer_id, transfer_state> transfers_;  // of this worker, not settled
  std::map<transfer_id, held_fork> received_;  // transfers from others: the forks that came in them and still exist
};

}  // namespace ferry::inline v0::detail

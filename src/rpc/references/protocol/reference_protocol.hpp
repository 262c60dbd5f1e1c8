#pragma once

// Who holds which reference, as one worker knows it, and what it has to tell the others. Numbers alone: nothing here locks,
// sends, waits or touches an object of a user; reference_table does. So a test can walk through every order of events.
//
// Words. The *owner* is the worker that has the object. A reference at another worker is a *fork*, its worker the *holder*.
// The holder who sends a reference on is the *parent*, and the fork that arises is the *child*. An object knows its *creator*:
// the worker whose call made it.
//
// Numbers. Nothing is assumed of the order or the number of times in which messages arrive, so each side must be able to tell
// something new from something late. Two kinds of numbers do that:
//   claim     drawn by a holder for one owner. Names a fork at that owner, and the object that the holder creates there.
//   hand-over drawn by a parent for one child worker. Names one reference in one message.
// Each is used up in order and begins with 1, so that the receiver's memory of those it has seen stays a few intervals.
// A number is never drawn twice, not even if its message was never sent: what is remembered of it may be relied on. Numbers of
// hand-overs that were not sent, or withdrawn, would be gaps in that memory for ever; so a parent that has left out some tells
// the child below which number nothing of its own is under way.
//
// Invariants:
//   G1  Every fork that ends is reported to the owner, again and again until the owner has answered.
//   G2  A parent keeps its own fork until it knows that the owner knows the child, or that there will be no child.
//   So while any fork exists the owner knows of one, and keeps the object.
//
// Of a worker that is gone nothing is known any more but that it is: what still arrives from it is refused, and what is still
// to be sent to it need not be. That is remembered of the last `most_gone` of them, for messages that are very late. Lives are
// told apart by their incarnation; where a backend has none, a worker that comes back under the same id cannot be told from its
// predecessor.
//
// Thread-safety: none. Every function may be called twice with the same message. begin_creation(), await() and receive(), which
// take what messages bring, have done nothing if they throw std::bad_alloc.

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

/// One life of one worker. `life` is zero where a backend does not tell it.
struct peer_incarnation {
  worker_id id;
  incarnation_id incarnation;
  friend constexpr auto operator<=>(const peer_incarnation&, const peer_incarnation&) noexcept = default;
};

/// One object that can be referred to, in the whole group and for ever.
struct object_id {
  peer_incarnation owner;
  peer_incarnation creator;
  std::uint64_t number = 0;  ///< the creator's claim at the owner
  friend constexpr auto operator<=>(const object_id&, const object_id&) noexcept = default;
};

/// One fork, as owner and holder name it between them.
struct fork_key {
  enum class numbered_by : std::uint8_t {
    holder,  ///< a claim
    owner,   ///< the hand-over in which the owner itself gave it away: known to the owner before it is to the holder
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

/// What workers tell each other beside the calls of users. Each is repeated until it is answered, or its receiver is gone. None
/// is told twice while it waits for its answer.
struct reference_control {
  enum class kind : std::uint8_t {
    fork_request = 1,    ///< holder to owner: I hold `object` as claim `number`
    child_accept = 2,    ///< child to parent: the owner knows the fork from your hand-over `number`, or needs not
    user_delete = 3,     ///< holder to owner: my fork `key` of `object` has ended
    transfer_query = 4,  ///< parent to child: has hand-over `number` arrived? If not, it must not any more
    creation_query = 5,  ///< creator to owner: has the call that makes `object` arrived? If not, it must not any more
    watermark = 6,       ///< parent to child: of my hand-overs below `number` none will arrive that has not
  };
  kind what{};
  object_id object;  ///< not of child_accept, hand_over_query and settled_below
  fork_key key;      ///< of user_delete
  std::uint64_t number = 0;
  friend auto operator<=>(const reference_control&, const reference_control&) noexcept = default;
};

enum class reference_answer : std::uint8_t {
  done = 0,      ///< known from now on; of queries: it has arrived
  too_late = 1,  ///< of fork_request: the object is gone; of queries: it has not arrived, and will be refused
};

/// What one event has brought about. Appended to.
struct reference_effects {
  struct control {
    peer_incarnation to;
    reference_control what;
    friend auto operator<=>(const control&, const control&) noexcept = default;
  };
  std::vector<control> controls;  ///< to be sent; to this worker itself, too
  /// Of this worker, that nobody refers to any more: their values may go, if there are any. One that has yet to be made may
  /// be made after all, when its call comes.
  std::vector<object_id> released;
  std::vector<object_id> never_made;  ///< of this worker, somebody refers to it: the call that makes it will not come
  std::vector<held_fork> confirmed;   ///< the owner knows them now
  struct failure {
    held_fork fork;
    errc why{};  ///< peer_lost: the owner is gone; reference_deleted: the object is
    friend auto operator<=>(const failure&, const failure&) noexcept = default;
  };
  std::vector<failure> failed;  ///< these have handles, and refer to nothing any more; the protocol has forgotten them
};

/// The references of one worker. Value type.
class reference_protocol {
 public:
  static constexpr std::size_t most_gone = 4096;
  static constexpr std::uint64_t most_left_out = 64;

  /// `left_out`: of so many hand-overs that did not arrive their receiver is told at once.
  explicit reference_protocol(peer_incarnation self, std::uint64_t left_out = most_left_out)
      : self_(self), most_left_out_(left_out) {}
  [[nodiscard]] peer_incarnation self() const noexcept { return self_; }

  // ---- at the owner

  /// A new object that was not made by a call of anybody, with handles here.
  object_id own();
  /// There are handles at the owner, or there are none any more. Of an object that is known here; else nothing happens.
  void hold_locally(const object_id& object);
  void drop_locally(const object_id& object, reference_effects& effects);
  /// The call that makes `object` has arrived. False: it is late (given up, or a duplicate) and must not run. To be called for
  /// every call that makes an object before it is answered, even if the answer is that it cannot run: end_creation follows.
  /// That it comes from the creator is for the caller to check.
  bool begin_creation(const object_id& object, reference_effects& effects);
  /// That call has ended: from now on the object lives as long as somebody refers to it.
  void end_creation(const object_id& object, reference_effects& effects);
  enum class knowledge : std::uint8_t {
    here,     ///< it is made, or being made
    awaited,  ///< somebody refers to it already, the call that makes it has yet to come; or nobody has yet, but may
    deleted,  ///< it was, or it will never be
  };
  /// Of an object of this worker; for a call on it that has arrived.
  [[nodiscard]] knowledge look_up(const object_id& object) const;
  /// Notes that somebody here waits for an awaited object, until it is here or never_made; it is held for them.
  void await(const object_id& object);

  // ---- at a holder

  /// A call that makes an object at `owner` is about to be sent. For an owner other than this worker the fork is pending; for
  /// this worker itself the object is known from now on and held locally, as by own(). Its creation counts as a fork of its own
  /// until confirm_creation, not_created or an answer to doubt_creation. Nothing is noted for an owner that is gone.
  object_id create(peer_incarnation owner);
  /// The fork of an object that this worker creates.
  [[nodiscard]] held_fork creating_fork(const object_id& object) const noexcept {
    return {object.owner, {fork_key::numbered_by::holder, object.number}};
  }
  /// That call was never sent. The fork has ended and the owner is told, for it may have been handed on already. Of handles
  /// that it has by now nothing is said.
  void not_created(const object_id& object, reference_effects& effects);
  /// The owner has answered that call: whatever it said, the call has arrived.
  void confirm_creation(const object_id& object, reference_effects& effects);
  /// That call ended without an answer: the owner is asked. The handles have failed already; the fork stays until they go.
  void query_creation(const object_id& object, reference_effects& effects);
  /// The last handle of a fork is gone. The fork ends as soon as its owner knows it and no hand-over keeps it.
  void drop(const held_fork& fork, reference_effects& effects);
  [[nodiscard]] bool confirmed(const held_fork& fork) const;

  // ---- references in messages

  /// A reference of this worker (to its own object, held locally, or through `fork`, which has handles and has not failed) goes
  /// into a message to `to`. Ends by not_sent, arrived or doubt; what keeps the fork may end before, by what the child says.
  /// Of a fork that has ended: number 0, which must not be sent.
  handed_reference transfer(const object_id& own_object, peer_incarnation to);
  handed_reference transfer(const held_fork& fork, peer_incarnation to);
  /// That message was not sent, and never will be. (Its number stays a gap in what the child remembers.)
  void not_sent(peer_incarnation to, std::uint64_t transfer, reference_effects& effects);
  /// That message was answered: it has arrived, and receive() was called for each reference in it. If that is not certain
  /// (the child could not decode it), doubt it instead.
  void arrived(peer_incarnation to, std::uint64_t transfer, reference_effects& effects);
  /// Nobody knows whether that message has arrived: the child is asked, unless the hand-over is settled.
  void query(peer_incarnation to, std::uint64_t transfer, reference_effects& effects);
  /// Nothing is kept for that hand-over any more.
  [[nodiscard]] bool settled(peer_incarnation to, std::uint64_t transfer) const;

  struct receipt {
    bool refused = false;    ///< it is late: withdrawn, or a duplicate of what has gone already
    bool own = false;        ///< the object is this worker's: held locally from now on (look_up tells whether it lives)
    held_fork fork;          ///< otherwise. If the owner is gone, it has failed in the same effects
    bool confirmed = false;  ///< of the fork
  };
  /// A reference in a message has arrived from `from`. The second arrival of one message gives the same fork again, as long as
  /// that one has handles.
  receipt receive(const handed_reference& reference, peer_incarnation from, reference_effects& effects);

  // ---- controls: from and for exactly these lives, which the carrier has to see to. Whom an answer is late for, ignores it.

  reference_answer on_control(peer_incarnation from, const reference_control& control, reference_effects& effects);
  void on_answer(peer_incarnation from, const reference_control& control, reference_answer answer,
                 reference_effects& effects);

  // ---- workers that go

  /// That life is over, by death or by leaving: its forks are released, references to its objects fail, nobody waits for it.
  /// Controls that wait to be sent to it, or for its answer, are to be thrown away.
  void gone(peer_incarnation who, reference_effects& effects);

  [[nodiscard]] bool is_gone(const peer_incarnation& peer) const;

  /// drop(), drop_locally() and end_creation() may have thrown std::bad_alloc when something was to go: now it goes.
  void end_what_is_free(reference_effects& effects);

  // ---- shutdown

  /// Forks whose owner does not know them yet, and hand-overs that are not settled.
  [[nodiscard]] std::size_t pending() const;
  /// All forks end as if their handles had gone; pending ones and those that a hand-over keeps as soon as they can.
  void drop_all(reference_effects& effects);

  // ---- figures

  struct counts {
    std::size_t owners = 0;            ///< objects here that somebody else refers to, or that are being made
    std::size_t forks = 0;             ///< of these
    std::size_t users = 0;             ///< forks of this worker
    std::size_t pending_users = 0;     ///< of these, not known to their owner
    std::size_t pending_children = 0;  ///< hand-overs that are not settled
  };
  [[nodiscard]] counts figures() const;
  struct fork_here {
    object_id object;
    peer_incarnation holder;
    fork_key key;
  };
  /// The forks of others, of objects here.
  [[nodiscard]] std::vector<fork_here> forks() const;

  friend bool operator==(const reference_protocol&, const reference_protocol&) = default;

 private:
  friend struct reference_probe;  // tests read and damage the state through it

  /// An object of this worker.
  struct owned_object {
    enum class creation : std::uint8_t { to_come, running, ended, never };
    creation made = creation::to_come;
    bool held = false;     ///< by handles here
    bool awaited = false;  ///< by calls here
    bool queried = false;  ///< this worker, its creator, has asked itself
    std::set<std::pair<peer_incarnation, fork_key>> forks;
    friend bool operator==(const owned_object&, const owned_object&) = default;
  };
  /// A hand-over, with its other end.
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
    bool queried = false;               ///< the owner is asked whether the creating call has arrived
    std::optional<transfer_id> origin;  ///< in which it came, unless the owner gave it
    bool accept_owed = false;           ///< to the origin
    std::set<transfer_id> pins;         ///< hand-overs that need it
    friend bool operator==(const user_fork&, const user_fork&) = default;
  };
  /// A reference of this worker on its way.
  struct transfer_state {
    object_id object;
    std::optional<held_fork> pinned;  ///< none: of an own object, which has a fork for the child
    bool arrived = false;
    bool queried = false;
    friend bool operator==(const transfer_state&, const transfer_state&) = default;
  };
  /// What is remembered of another worker, or of this one as its own peer.
  struct peer_record {
    std::uint64_t claims = 0;      ///< the last that was drawn for it
    std::uint64_t transfers = 0;   ///< the last that was drawn for it
    std::uint64_t left_out = 0;    ///< of these, those that were not sent, or withdrawn, since it was told of such
    std::uint64_t told_below = 1;  ///< the number that it was told then
    number_set ended_claims;       ///< of its claims here
    number_set seen;               ///< of its hand-overs to this worker: arrived or withdrawn
    number_set withdrawn;          ///< of these, the latter
    friend bool operator==(const peer_record&, const peer_record&) = default;
  };
  using objects = std::map<object_id, owned_object>;
  using users = std::map<held_fork, user_fork>;

  [[nodiscard]] bool claim_ended(const peer_incarnation& holder, std::uint64_t claim) const;
  [[nodiscard]] bool may_come(const object_id& object) const;
  objects::iterator find_or_expect(const object_id& object, reference_effects& effects);
  void release_if_free(objects::iterator object, reference_effects& effects);
  void never_comes(owned_object& entry, const object_id& object, reference_effects& effects);
  void end_fork(const object_id& object, peer_incarnation holder, const fork_key& key, reference_effects& effects);
  reference_answer on_fork_request(peer_incarnation from, const object_id& object, std::uint64_t claim,
                                   reference_effects& effects);
  reference_answer on_transfer_query(peer_incarnation from, std::uint64_t number);
  reference_answer on_creation_query(peer_incarnation from, const object_id& object, reference_effects& effects);

  receipt receive_own(const handed_reference& reference, peer_incarnation from, number_set& seen,
                      reference_effects& effects);
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
  std::map<peer_incarnation, peer_record> peers_;  // of those that are not gone
  std::set<peer_incarnation> gone_;                // the last ones
  std::deque<peer_incarnation> order_of_gone_;
  // Claims at owners that are gone name nothing there, and no claim that was drawn before.
  std::uint64_t vain_claims_ = std::uint64_t{1} << 63U;
  objects objects_;
  users users_;
  std::map<transfer_id, transfer_state> transfers_;  // of this worker, not settled
  std::map<transfer_id, held_fork> received_;        // from others: the forks that came in them and still are
};

}  // namespace ferry::inline v0::detail

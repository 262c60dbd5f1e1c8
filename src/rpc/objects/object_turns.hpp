#pragma once

// Schedules the calls on one object: which run, and which wait for their turn.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include <ferry/base/ids.hpp>
#include <ferry/base/work.hpp>
#include <ferry/rpc/object_traits.hpp>

#include "../references/protocol/reference_records.hpp"

namespace ferry::inline v0::detail {

struct object_visit;
class owned_object;

/// Runs the continuations of a call on a reentrant object in the call's turns. Part of the call.
class turn_executor final : public executor {
 public:
  explicit turn_executor(object_visit& visit) : call_(visit) {}
  void post(work* item) noexcept override;

 private:
  object_visit& call_;  // code that posts holds the call's context
};

/// Waiting calls in the order of their places.
struct call_queue {
  object_visit* first = nullptr;
  object_visit* last = nullptr;
};
/// A thread of a call that waits to get the turn back.
struct returning_call {
  object_visit* visit = nullptr;
  bool admitted = false;
  returning_call* next = nullptr;
};
/// A set of calls of which one at a time has the turn.
struct turn_lane {
  int calls = 0;  ///< number that have entered and not left
  object_visit* running = nullptr;
  returning_call* first_returning = nullptr;
  returning_call* last_returning = nullptr;
  object_visit* first_stepping = nullptr;
  object_visit* last_stepping = nullptr;
  call_queue waiting;
};

/// The calls on one object, in order of arrival. Calls that need no turn pass through. Thread-safe.
///
/// Calls wait in lanes: one lane per object if it is `exclusive`, one per caller incarnation if it is `ordered`, so
/// that a worker that has taken over the id of a dead one does not wait behind the dead one's calls. In each lane one
/// call has the turn and keeps it until it has answered. On a reentrant object a call releases the turn while it waits,
/// and takes it again, ahead of new calls, after the wait; the steps of a coroutine then run only through its
/// turn_executor. A call that cannot begin yet (its references are not confirmed) blocks the calls behind it if they
/// are `ordered`; `exclusive` calls overtake it.
///
/// Only enter() allocates memory; all later operations use memory allocated there.
class object_turns {
  using lane = turn_lane;
  using lane_map = std::map<peer_incarnation, lane>;

 public:
  /// A call's position. Part of the call; guarded by the object's mutex.
  struct place {
    explicit place(object_visit& visit) : threads(visit) {}

    bool early = false;  ///< the object has not been made
    bool in_lane = false;
    bool passes = false;        ///< needs no turn
    bool ready = false;         ///< it can begin as soon as it has its turn
    bool running = false;       ///< it has begun
    bool left = false;          ///< it has answered: its remaining steps need no turn
    peer_incarnation lane_key;  ///< the caller; id -1: the lane of all callers
    std::uint64_t number = 0;   ///< of its turn

   private:
    friend class object_turns;
    struct step_item : work {
      object_visit* visit = nullptr;
    };
    object_visit* previous = nullptr;  // in the list of waiting calls
    object_visit* next = nullptr;
    object_visit* next_launched = nullptr;
    // Steps of a coroutine that wait for the turn, oldest first; `step` is the one that has the turn.
    work* first_step = nullptr;
    work* last_step = nullptr;
    bool stepping = false;  // in the lane's list of calls that have steps
    object_visit* next_stepping = nullptr;
    work* step = nullptr;
    step_item item;
    lane_map::node_type spare;  // for a new lane, if the call needs one
    turn_executor threads;
  };

  /// A call has arrived; it keeps its place from now on. Sets the refusal of a call that would wait for a call that
  /// itself waits for it. Throws std::bad_alloc; then the call has no place. Strong guarantee.
  void enter(object_visit& visit);
  /// The call can begin: begins it now or when its turn comes.
  void ready(object_visit& visit) noexcept;
  /// Answers a call that has not begun with that error, without waiting for its turn. Returns false if it has begun.
  bool refuse(object_visit& visit, std::exception_ptr why) noexcept;
  /// The object has been made, or its creation has failed: calls may begin.
  void made(execution_policy policy) noexcept;
  /// The call has answered.
  void leave(object_visit& visit) noexcept;
  /// Brackets a wait of a thread of the call: pause() releases the turn, resume() blocks until the call has it again.
  void pause(object_visit& visit) noexcept;
  void resume(object_visit& visit) noexcept;
  /// Runs a step of a call whose handler has returned as soon as the call has the turn again.
  void post(object_visit& visit, work* step) noexcept;

  // ---- for deadlock detection

  /// Sets the running call that makes the object, or (null) clears it. Users of the pointer must keep the call alive.
  void set_maker(object_visit* visit) noexcept;
  /// What certainly keeps a call from ending.
  struct obstacle {
    object_visit* maker = nullptr;  ///< the call that has yet to make the object
    held_turn turn;                 ///< the turn that it waits for, or its own one once begun. None: its number is 0
    bool begun = false;             ///< `turn` is its own
  };
  [[nodiscard]] obstacle obstacle_of(const object_visit& visit) const;
  /// What a call that has not begun waits for: "its turn at ..., held by ...". Empty: it waits for a thread.
  [[nodiscard]] std::string describe_wait(const object_visit& visit) const;

 private:
  // Calls, and steps of calls, that may run now, in order.
  class begun {
   public:
    void add(object_visit& visit) noexcept;
    void launch() noexcept;

   private:
    object_visit* first_ = nullptr;
    object_visit* last_ = nullptr;
  };

  static void add(call_queue& to, object_visit& visit) noexcept;
  static void remove(call_queue& from, object_visit& visit) noexcept;
  void take_place(object_visit& visit);
  void withdraw(object_visit& visit, begun& now) noexcept;
  lane* find(const place& of) noexcept;
  [[nodiscard]] const object_visit* running_in(const place& of) const noexcept;
  void advance(lane& of, begun& now) noexcept;
  void leave_lane(const place& of) noexcept;
  static void take_step(lane& of, object_visit& visit) noexcept;
  void release_returning(lane& of, const object_visit& visit) noexcept;

  mutable std::mutex mutex_;  // guards what follows
  bool made_ = false;
  execution_policy policy_;
  std::uint64_t numbers_ = 0;  // turns numbered so far
  object_visit* maker_ = nullptr;
  call_queue early_;  // calls that arrived before the object was made
  lane all_;
  lane_map lanes_;  // by caller
  std::condition_variable admitted_;
};

}  // namespace ferry::inline v0::detail

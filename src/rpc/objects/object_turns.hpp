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

class incoming_call;
class worker_core;
class owned_object;

/// Runs the continuations of a call on a reentrant object in the call's turns. Part of the call.
class turn_executor final : public executor {
 public:
  explicit turn_executor(incoming_call& call) : call_(call) {}
  void post(work* item) noexcept override;
  [[nodiscard]] const std::shared_ptr<worker_core>& worker() const noexcept;

 private:
  incoming_call& call_;  // code that posts holds the call's context
};

/// Waiting calls in the order of their places.
struct call_queue {
  incoming_call* first = nullptr;
  incoming_call* last = nullptr;
};
/// A thread of a call that waits to get the turn back.
struct returning_call {
  incoming_call* call = nullptr;
  bool admitted = false;
  returning_call* next = nullptr;
};
/// A set of calls of which one at a time has the turn.
struct turn_lane {
  int calls = 0;  ///< number that have entered and not left
  incoming_call* running = nullptr;
  returning_call* first_returning = nullptr;
  returning_call* last_returning = nullptr;
  incoming_call* first_stepping = nullptr;
  incoming_call* last_stepping = nullptr;
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
    explicit place(incoming_call& call) : threads(call) {}

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
      incoming_call* call = nullptr;
    };
    incoming_call* previous = nullptr;  // in the list of waiting calls
    incoming_call* next = nullptr;
    incoming_call* next_launched = nullptr;
    // Steps of a coroutine that wait for the turn, oldest first; `step` is the one that has the turn.
    work* first_step = nullptr;
    work* last_step = nullptr;
    bool stepping = false;  // in the lane's list of calls that have steps
    incoming_call* next_stepping = nullptr;
    work* step = nullptr;
    step_item item;
    lane_map::node_type spare;  // for a new lane, if the call needs one
    turn_executor threads;
  };

  /// A call has arrived; it keeps its place from now on. Sets the refusal of a call that would wait for a call that
  /// itself waits for it. Throws std::bad_alloc; then the call has no place. Strong guarantee.
  void enter(incoming_call& call);
  /// The call can begin: begins it now or when its turn comes.
  void ready(incoming_call& call) noexcept;
  /// Answers a call that has not begun with that error, without waiting for its turn. Returns false if it has begun.
  bool refuse(incoming_call& call, std::exception_ptr why) noexcept;
  /// The object has been made, or its creation has failed: calls may begin.
  void made(execution_policy policy) noexcept;
  /// The call has answered.
  void leave(incoming_call& call) noexcept;
  /// Brackets a wait of a thread of the call: pause() releases the turn, resume() blocks until the call has it again.
  void pause(incoming_call& call) noexcept;
  void resume(incoming_call& call) noexcept;
  /// Runs a step of a call whose handler has returned as soon as the call has the turn again.
  void post(incoming_call& call, work* step) noexcept;

  // ---- for deadlock detection

  /// Sets the running call that makes the object, or (null) clears it. Users of the pointer must keep the call alive.
  void set_maker(incoming_call* call) noexcept;
  /// What certainly keeps a call from ending.
  struct obstacle {
    incoming_call* maker = nullptr;  ///< the call that has yet to make the object
    held_turn turn;                  ///< the turn that it waits for, or its own one once begun. None: its number is 0
    bool begun = false;              ///< `turn` is its own
  };
  [[nodiscard]] obstacle obstacle_of(const incoming_call& call) const;
  /// What a call that has not begun waits for: "its turn at ..., held by ...". Empty: it waits for a thread.
  [[nodiscard]] std::string describe_wait(const incoming_call& call) const;

 private:
  // Calls, and steps of calls, that may run now, in order.
  class begun {
   public:
    void add(incoming_call& call) noexcept;
    void launch() noexcept;

   private:
    incoming_call* first_ = nullptr;
    incoming_call* last_ = nullptr;
  };

  static void add(call_queue& to, incoming_call& call) noexcept;
  static void remove(call_queue& from, incoming_call& call) noexcept;
  void take_place(incoming_call& call);
  void withdraw(incoming_call& call, begun& now) noexcept;
  lane* find(const place& of) noexcept;
  [[nodiscard]] const incoming_call* running_in(const place& of) const noexcept;
  void advance(lane& of, begun& now) noexcept;
  void leave_lane(const place& of) noexcept;
  static void take_step(lane& of, incoming_call& call) noexcept;
  void release_returning(lane& of, const incoming_call& call) noexcept;

  mutable std::mutex mutex_;  // guards what follows
  bool made_ = false;
  execution_policy policy_;
  std::uint64_t numbers_ = 0;  // turns numbered so far
  incoming_call* maker_ = nullptr;
  call_queue early_;  // calls that arrived before the object was made
  lane all_;
  lane_map lanes_;  // by caller
  std::condition_variable admitted_;
};

/// The worker of a call context's executor; null if the executor is not the library's.
std::shared_ptr<worker_core> worker_behind(executor* threads) noexcept;

}  // namespace ferry::inline v0::detail

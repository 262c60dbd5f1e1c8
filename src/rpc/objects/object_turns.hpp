#pragma once

// Which of the calls on one object run, and which wait for their turn.

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

/// Where the continuations of a call on a reentrant object run: in its turns. Part of the call.
class turn_executor final : public executor {
 public:
  explicit turn_executor(incoming_call& call) : call_(call) {}
  void post(work* item) noexcept override;
  [[nodiscard]] const std::shared_ptr<worker_core>& worker() const noexcept;

 private:
  incoming_call& call_;  // whoever has something to post holds its context
};

/// Calls that wait, by the places that they have.
struct call_queue {
  incoming_call* first = nullptr;
  incoming_call* last = nullptr;
};
/// A thread of a call that comes back from a wait.
struct returning_call {
  incoming_call* call = nullptr;
  bool admitted = false;
  returning_call* next = nullptr;
};
/// Calls of which one has the turn at a time.
struct turn_lane {
  int calls = 0;  ///< that have entered and not left
  incoming_call* running = nullptr;
  returning_call* first_returning = nullptr;
  returning_call* last_returning = nullptr;
  incoming_call* first_stepping = nullptr;
  incoming_call* last_stepping = nullptr;
  call_queue waiting;
};

/// The calls on one object, in the order in which they arrived. Calls that need no turn pass through. Thread-safe.
///
/// Calls wait in lanes: one for the object if they exclude each other, one for each caller if those of one caller are ordered:
/// whoever has taken the id of a dead worker does not wait behind what that one has called.
/// In each lane one call has the turn. It keeps it until it has answered; if the object is reentrant it gives it away while it
/// waits, and takes it again, before newcomers, when the wait is over. Between its steps a coroutine then runs only what its
/// turn_executor lets run. A call that could not begin yet (its references are not confirmed) holds up those behind it if they
/// are ordered; where calls exclude each other they pass it.
///
/// Only enter() allocates memory: everything that follows happens in what it has got.
class object_turns {
  using lane = turn_lane;
  using lane_map = std::map<peer_incarnation, lane>;

 public:
  /// Where a call stands. Belongs to the call; guarded by the object's turns.
  struct place {
    explicit place(incoming_call& call) : threads(call) {}

    bool early = false;  ///< the object has not been made
    bool in_lane = false;
    bool passes = false;        ///< needs no turn
    bool ready = false;         ///< it could begin but for its turn
    bool running = false;       ///< it has begun
    bool left = false;          ///< it has answered: what still runs of it needs no turn
    peer_incarnation lane_key;  ///< the caller; of id -1: that of all
    std::uint64_t number = 0;   ///< of its turn

   private:
    friend class object_turns;
    struct step_item : work {
      incoming_call* call = nullptr;
    };
    incoming_call* previous = nullptr;  // in the list of those that wait
    incoming_call* next = nullptr;
    incoming_call* next_launched = nullptr;
    // Steps of a coroutine that wait for the turn, oldest first; then the one that has got it.
    work* first_step = nullptr;
    work* last_step = nullptr;
    bool stepping = false;  // in the lane's list of those that have steps
    incoming_call* next_stepping = nullptr;
    work* step = nullptr;
    step_item item;
    lane_map::node_type spare;  // for a lane of its own, if it turns out to need one
    turn_executor threads;
  };

  /// A call has arrived. Its place is kept from now on. Of one that would wait for a call that itself waits for it, the
  /// refusal is set. Throws std::bad_alloc; then nothing has happened, and it has no place.
  void enter(incoming_call& call);
  /// The call could begin: does so, now or when its turn comes.
  void ready(incoming_call& call) noexcept;
  /// A call that has not begun shall be answered with that error, without waiting for its turn. False: it has begun.
  bool refuse(incoming_call& call, std::exception_ptr why) noexcept;
  /// The object has been made, or its making has failed, and calls may begin.
  void made(execution_policy policy) noexcept;
  /// The call has answered.
  void leave(incoming_call& call) noexcept;
  /// A thread of the call waits, or no longer does: blocks until it has the turn again.
  void pause(incoming_call& call) noexcept;
  void resume(incoming_call& call) noexcept;
  /// Runs a step of a call whose handler has returned, when it has the turn again.
  void post(incoming_call& call, work* step) noexcept;

  // ---- for those who look for calls that wait for each other

  /// The call that makes the object is at work, or (null) not any more. Whoever uses it sees to it that it stays.
  void set_maker(incoming_call* call) noexcept;
  /// What keeps a call from ending, as far as that is certain.
  struct obstacle {
    incoming_call* maker = nullptr;  ///< the object has yet to be made, by that call
    held_turn turn;                  ///< a call has this turn: another one, or itself. None: its number is 0
    bool begun = false;              ///< itself
  };
  [[nodiscard]] obstacle obstacle_of(const incoming_call& call) const;
  /// What a call that has not begun waits for: "its turn at ..., which ... has". Empty: for a thread.
  [[nodiscard]] std::string describe_wait(const incoming_call& call) const;

 private:
  // Calls, and steps of calls, that may run, in their order.
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
  void stand_aside(incoming_call& call, begun& now) noexcept;
  lane* find(const place& of) noexcept;
  [[nodiscard]] const incoming_call* running_in(const place& of) const noexcept;
  void advance(lane& of, begun& now) noexcept;
  void leave_lane(const place& of) noexcept;
  static void take_step(lane& of, incoming_call& call) noexcept;
  void let_return(lane& of, const incoming_call& call) noexcept;

  mutable std::mutex mutex_;  // guards what follows
  bool made_ = false;
  execution_policy policy_;
  std::uint64_t numbers_ = 0;  // of turns, so far
  incoming_call* maker_ = nullptr;
  call_queue early_;  // before it was made
  lane all_;
  lane_map lanes_;  // of callers
  std::condition_variable admitted_;
};

/// The worker behind an executor of a call context; null if it is none of the library's.
std::shared_ptr<worker_core> worker_behind(executor* threads) noexcept;

}  // namespace ferry::inline v0::detail

#pragma once

// The gathers that a worker takes part in: its own round count for each set of members and, for the sets for which it
// collects, the rounds that wait for members.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

#include <ferry/backend/agent.hpp>
#include <ferry/base/time.hpp>
#include <ferry/rpc/debug.hpp>
#include <ferry/rpc/detail/value_order.hpp>
#include <ferry/rpc/promise.hpp>
#include <ferry/transport/reactor.hpp>

#include "gather_messages.hpp"

namespace ferry::inline v0::detail {

class time_limit;
class worker_core;

/// One object per worker. Thread-safe.
class gather_rounds : public std::enable_shared_from_this<gather_rounds> {
 public:
  using member_set = std::vector<std::string>;  // sorted

  static std::shared_ptr<gather_rounds> of(worker_core& worker);

  // For a member.
  struct turn {
    std::uint64_t round = 0;
    bool counts = false;
  };
  /// Starts this worker's next gather over the set and returns its round number, if this worker knows it. Must be
  /// followed by one of the two functions below.
  turn take_turn(const member_set& set);
  /// The collecting worker has answered. The round was `round`, which may differ from the one in `taken`.
  void answered(const member_set& set, const turn& taken, std::uint64_t round);
  /// The collecting worker has not answered: its current round is unknown to this worker.
  void not_answered(const member_set& set);

  // For the collecting worker.
  /// Adds the contribution of `from` to its round. The future completes when the round has ended. `gone` is stopped
  /// when `from` no longer waits.
  future<gather_answer> arrive(const gather_arrival& arrival, const std::string& from, ferry::agent& group,
                               const std::stop_token& gone);
  /// Ends the rounds that wait for this member, which has left or was lost before it called.
  void on_gone(const worker_info& who, const std::string& what) noexcept;
  void on_joined(const worker_info& who) noexcept;
  /// The rounds that wait for members.
  void describe_waiting(clock::time_point now, std::vector<pending_collective_info>& to) const;
  /// The number of waiting members; for tests, like the next function.
  [[nodiscard]] std::size_t waiting_members() const;
  [[nodiscard]] std::vector<std::string> gone_names() const;

 private:
  // Identifies a member in a round. The round may have ended when it is looked up.
  struct place {
    std::weak_ptr<gather_rounds> rounds;
    member_set set;
    std::uint64_t round = 0;
    std::string member;
  };
  // Ends the round when the member is lost or cancels its call.
  struct departure {
    std::shared_ptr<const place> where;
    void operator()() const noexcept;
  };
  struct waiting_member {
    promise<gather_answer> answer;
    serialized value;
    std::unique_ptr<value_order> order;  // of its tensors on devices
    std::uint64_t type = 0;
    std::string operation;
    std::uint64_t limit_us = 0;
    deadline until;
    std::shared_ptr<time_limit> limit;  // ends the round
    std::unique_ptr<std::stop_callback<departure>> watch;
    std::shared_ptr<void>* answered = nullptr;  // member of the arrival, which lives as long as the member waits
  };
  struct last_answer;
  // Comes with what the end of the round needs, so that it ends although there is no memory.
  struct round_state {
    std::string collecting;
    clock::time_point began;
    std::map<std::string, waiting_member> members;
    std::set<std::uint64_t>::node_type number;
    std::shared_ptr<gather_result> result;
    std::shared_ptr<last_answer> last;
  };
  using rounds = std::map<std::uint64_t, round_state>;
  struct set_state {
    // As a member. If `counts` is false, the collecting worker assigns the first round that this member has not joined.
    bool counts = false;
    std::uint64_t next = 0;
    int under_way = 0;
    // As the collecting worker. Rounds below `open` and those in `ended` have ended.
    std::set<std::string> known;  // members that count these rounds
    std::uint64_t open = 0;
    std::set<std::uint64_t> ended;
    rounds waiting;
  };
  using sets = std::map<member_set, set_state>;

  /// Error text naming a member that `round` waits for once `arriving` is in it, and that has left or was lost; empty:
  /// none. Call with the mutex
  /// held.
  [[nodiscard]] std::string gone_of(const member_set& set, const round_state& round, const std::string& arriving) const;
  /// Drops the records of departed members of the set whose names other workers have by now. Blocks while the member
  /// list is brought up to date, if there are such records.
  void forget_returned(const member_set& set, ferry::agent& group);
  /// Drops the record of a departed member with that id. Call with the mutex held.
  void forget_gone(worker_id id) noexcept;

  static bool is_over(const set_state& set, std::uint64_t round);
  /// The first round that `member` has not joined and that has not ended.
  static std::uint64_t next_for(const set_state& set, const std::string& member);
  /// A round without members.
  static round_state make_round(const std::string& collecting, std::uint64_t number);
  /// Ends the round and removes it. Call with the mutex held.
  round_state end_round(sets::iterator set, rounds::iterator round) noexcept;
  /// Takes a member out of a round that has not ended, because its call fails. False: the round has ended. Call with the
  /// mutex held; `out` must be destroyed without it.
  bool withdraw(const place& where, std::map<std::string, waiting_member>::node_type& out) noexcept;
  /// Drops the state of an idle set for which this worker only collects, if there are many sets. Call with the mutex
  /// held.
  void forget_if_idle(sets::iterator set) noexcept;
  /// Ends the round in which `where` waits, because the member's limit has expired, or because it was lost or has
  /// cancelled.
  void give_up(const place& where, bool timed_out) noexcept;
  /// Ends the rounds of the set in which a member's deadline has passed, before the timer fires.
  void end_late_rounds(const gather_arrival& arrival);
  /// Sets the error of a round. Without memory for the text it is empty.
  template <class Describe>
  static void set_error(gather_result& result, errc error, const Describe& describe) noexcept;
  /// The calling thread's current streams wait for the tensors of all members; call on the thread that answers.
  static void order_values(round_state& ended) noexcept;
  /// Answers all waiting members, the collecting worker last. Call without the mutex.
  static void answer(round_state ended) noexcept;

  mutable std::mutex mutex_;
  sets sets_;
  // Members that have left or were lost, at most one per id: a successor with the id or the name erases the entry.
  struct gone_worker {
    worker_id id;
    std::string what;
    std::uint64_t number = 0;  // counts these records
  };
  std::map<std::string, gone_worker> gone_;
  std::map<worker_id, std::string> gone_names_;
  std::uint64_t gone_so_far_ = 0;
  std::once_flag observes_;
};

/// "a, b, c"; for many names the first few and the number of the rest.
std::string list_names(const std::vector<std::string>& names);

}  // namespace ferry::inline v0::detail

#pragma once

// The gathers that a worker takes part in: its own count for each set of members, and, where it collects, the rounds that
// wait for members.

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
#include <ferry/rpc/promise.hpp>
#include <ferry/transport/reactor.hpp>

#include "gather_messages.hpp"

namespace ferry::inline v0::detail {

class worker_core;

/// One per worker. Thread-safe.
class gather_rounds : public std::enable_shared_from_this<gather_rounds> {
 public:
  using member_set = std::vector<std::string>;  // sorted

  static std::shared_ptr<gather_rounds> of(worker_core& worker);

  // The member's side.
  struct turn {
    std::uint64_t round = 0;
    bool counts = false;
  };
  /// This worker's next gather over the set: which round it is to be, if this worker knows. To be ended by one of the
  /// two below.
  turn take_turn(const member_set& set);
  /// It was `round`, perhaps another one than this worker took it for.
  void answered(const member_set& set, const turn& taken, std::uint64_t round);
  /// The one that collects did not answer: this worker does not know where that one is by now.
  void not_answered(const member_set& set);

  // The collecting side.
  /// `from` has come; the answer is there when the round has ended. `gone` stops when `from` no longer waits.
  future<gather_answer> arrive(const gather_arrival& arrival, const std::string& from, const ferry::agent& group,
                               const std::stop_token& gone);
  /// How many members wait here; for tests, as the next one.
  [[nodiscard]] std::size_t waiting_members() const;
  [[nodiscard]] std::vector<std::string> gone_names() const;

 private:
  // Which member of which round. The round may have ended when its holder looks it up.
  struct place {
    std::weak_ptr<gather_rounds> rounds;
    member_set set;
    std::uint64_t round = 0;
    std::string member;
  };
  // Ends the round when the member's time is over.
  class time_limit;
  // Ends the round when the member is lost or gives up.
  struct departure {
    place where;
    void operator()() const noexcept;
  };
  struct waiting_member {
    promise<gather_answer> answer;
    serialized value;
    std::uint64_t type = 0;
    std::uint64_t limit_us = 0;
    deadline until;
    std::shared_ptr<time_limit> limit;
    std::unique_ptr<std::stop_callback<departure>> watch;
    std::shared_ptr<void>* answered = nullptr;  // of the arrival, which waits with it
  };
  struct round_state {
    std::map<std::string, waiting_member> members;
  };
  struct set_state {
    // As a member. Unless it counts, the one that collects gives it the first round that it is missing in.
    bool counts = false;
    std::uint64_t next = 0;
    int under_way = 0;
    // As the one that collects: rounds below `open` and those in `ended` are over.
    std::set<std::string> known;  // members whose count is of these rounds
    std::uint64_t open = 0;
    std::set<std::uint64_t> ended;
    std::map<std::uint64_t, round_state> waiting;
  };

  /// Ends the rounds that wait for a member that has left or died before it came.
  void on_gone(const worker_info& who, const std::string& what) noexcept;
  void on_joined(const worker_info& who) noexcept;
  /// Of those that `round` waits for one that is gone; empty: none. With the mutex held.
  [[nodiscard]] std::string gone_of(const member_set& set, const round_state& round, const ferry::agent& group) const;
  /// No round waits for that id any more. With the mutex held.
  void forget_gone(worker_id id) noexcept;

  static bool is_over(const set_state& set, std::uint64_t round);
  /// The first round that `member` can still join.
  static std::uint64_t next_for(const set_state& set, const std::string& member);
  /// The round is over: takes it out. With the mutex held.
  round_state end_round(const member_set& set, std::uint64_t round);
  /// Drops what is kept of a set that this worker only collects for, if that is of many. With the mutex held.
  void forget_if_idle(const member_set& set);
  /// Ends the round that `where` waits in, because its time is over or it is gone.
  void give_up(const place& where, bool timed_out) noexcept;
  /// Ends the rounds of the set in which a member's deadline has passed, before the timer fires.
  void end_late_rounds(const gather_arrival& arrival);
  /// Answers all who wait, the one that collects last. Without the mutex.
  static void answer(round_state ended, const std::string& collecting, gather_result result);

  mutable std::mutex mutex_;
  std::map<member_set, set_state> sets_;
  // Members that left or died, at most one for each id: a successor with the id or the name erases the entry.
  struct gone_worker {
    worker_id id;
    std::string what;
  };
  std::map<std::string, gone_worker> gone_;
  std::map<worker_id, std::string> gone_names_;
  std::once_flag observes_;
};

/// "a, b, c", or the first few of many and how many more there are.
std::string list_names(const std::vector<std::string>& names);

}  // namespace ferry::inline v0::detail

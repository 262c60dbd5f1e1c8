#pragma once

// Decides when a worker is dead. Only the decisions, without clocks, threads or connections: the failure detector calls it
// at every tick, and executes the result. docs/failure.md has the reasoning.

#include <algorithm>
#include <chrono>
#include <cstdint>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

struct lease_rules {
  std::chrono::nanoseconds interval;  ///< between two heartbeats, and between two ticks
  std::chrono::nanoseconds lease;     ///< silence that counts as death
};

/// How long a silent worker is excused, without the time in which this worker stood still.
inline constexpr int leases_excused = 2;

/// What one worker has recorded about the liveness of another.
struct liveness {
  clock::time_point heard{};      ///< the last message received, the start of watching, or a new lease
  clock::time_point last_word{};  ///< without new leases, but later by the time in which this worker stood still
  int links = 0;                  ///< open connections that carry calls, of either direction
  bool suspect = false;           ///< a connection has broken, and none has been opened since
  bool awaited = false;           ///< a local operation waits for it without a call (a shutdown)
  bool sought = false;            ///< calls are repeated until it answers: its absence matters, its silence does not
  bool guarded = false;           ///< this worker watches it even when no other worker does
  bool reached = false;           ///< this worker has opened a connection to it before: its addresses are right
  bool control = false;           ///< the control connection is open
  bool opening = false;           ///< or being opened
  int ticks_without_control = 0;

  // For a guarded worker that was never reached: it is queried in the group's log.
  clock::time_point unreached_since{};  ///< when guarding began, or its last answer
  int answers = 0;                      ///< number of its answers: the interval between queries grows with it
  std::uint64_t question = 0;           ///< the log entry that asks; 0: none
  clock::time_point asked_at{};
  bool log_is_asked = false;  ///< this worker is about to write a query, or to read its result

  /// Its silence counts: only a worker that something depends on is declared dead.
  [[nodiscard]] bool watched() const noexcept {
    return links > 0 || suspect || awaited || (guarded && (reached || control));
  }
  /// A control connection is wanted.
  [[nodiscard]] bool wants_control() const noexcept { return watched() || guarded; }
  /// It may be watching this worker, so it needs heartbeats. An idle group sends nothing.
  [[nodiscard]] bool connected() const noexcept { return control || links > 0; }
  /// Starts or restarts watching: the lease starts now.
  void renew(clock::time_point now) noexcept {
    heard = std::max(heard, now);
    note_word(now);
  }
  /// It has said something, or was asked: its excuses begin anew.
  void note_word(clock::time_point now) noexcept { last_word = std::max(last_word, now); }
  void begin_guarding(clock::time_point now) noexcept {
    guarded = true;
    unreached_since = now;
    note_word(now);
    answers = 0;
    question = 0;
  }
  /// Grants a delay: it had no chance to answer until now.
  void allow_for_delay(clock::time_point now) noexcept {
    renew(now);
    unreached_since = asked_at = now;
  }
  /// This worker itself stood still for `stall` until `now`, and read nothing: grants a new lease, but not for ever where
  /// this happens again and again.
  void excuse(clock::time_point now, std::chrono::nanoseconds stall, const lease_rules& rules) noexcept {
    for (auto* since : {&last_word, &unreached_since, &asked_at}) *since = std::min(now, *since + stall);
    if (now - last_word > leases_excused * rules.lease) return;
    for (auto* since : {&heard, &unreached_since, &asked_at}) *since = std::max(*since, now);
  }
  /// The log has a question for it.
  void ask(std::uint64_t entry, clock::time_point now) noexcept {
    question = entry;
    asked_at = unreached_since = now;
    note_word(now);
  }
  /// It has answered in the log.
  void take_answer(clock::time_point now) noexcept {
    question = 0;
    unreached_since = now;
    note_word(now);
    ++answers;
  }
};

/// What to do about a peer at a tick.
struct liveness_actions {
  bool declare_lost = false;
  bool open_control = false;
  bool send_heartbeat = false;  ///< over the control connection, or, without one, where calls go
  bool ask_log = false;         ///< query whether it lives
  bool read_log = false;        ///< whether it has answered: its time has run out
  friend bool operator==(const liveness_actions&, const liveness_actions&) = default;
};

/// `opens_first`: of the two workers this one opens the control connection at once; the other one does so if there
/// still is none after a third of a lease.
liveness_actions assess(liveness& peer, clock::time_point now, const lease_rules& rules, bool opens_first) noexcept;

/// Whether a tick that was due at `due` is so late that this process itself must have been suspended or starved:
/// messages missing in that time say nothing about others.
[[nodiscard]] bool was_stalled(clock::time_point due, clock::time_point now, const lease_rules& rules) noexcept;

/// What a failed attempt to connect shows about the target worker.
enum class connect_verdict : std::uint8_t {
  opened,     ///< it lives
  gone,       ///< it no longer exists
  fenced,     ///< it lives, and has declared this worker dead
  leaving,    ///< it is shutting down
  exhausted,  ///< descriptors or places have run out, here or there (then it lives): says nothing about its end
  hung_up,    ///< the connection was closed before the peer identified itself: it is being killed, or overloaded
  unknown,    ///< no answer: only its lease decides
};

}  // namespace ferry::inline v0::detail

#pragma once

// When is a worker dead? The decisions alone, without clocks, threads or connections: the agent asks at every tick, and does
// what it is told. docs/failure.md has the reasoning.

#include <chrono>
#include <cstdint>
#include <string_view>

#include <ferry/base/time.hpp>

namespace ferry::inline v0::detail {

struct lease_rules {
  std::chrono::nanoseconds interval;  ///< between two heartbeats, and between two ticks
  std::chrono::nanoseconds lease;     ///< silence that is taken for death
};

/// What one worker knows of the life of another.
struct liveness {
  clock::time_point heard{};  ///< the last sign of life, or when watching began
  int links = 0;              ///< open connections that carry calls, of either direction
  bool suspect = false;       ///< a connection has broken, and none has been made since
  bool awaited = false;       ///< something waits for it without a call (a shutdown)
  bool sought = false;        ///< calls are repeated until it answers: unlike its absence, its silence means nothing
  bool guarded = false;       ///< this worker is the one that watches it when nobody else does
  bool reached = false;       ///< this worker has opened a connection to it before: its addresses are right
  bool control = false;       ///< the control connection is open
  bool opening = false;       ///< or being opened
  int ticks_without_control = 0;

  // Of one that is guarded, and has never been reached: it is asked in the group's log whether it lives.
  clock::time_point unreached_since{};  ///< when guarding began, or it answered
  int answers = 0;                      ///< that it gave: it is asked less and less often
  std::uint64_t question = 0;           ///< the entry that asks; 0: none
  clock::time_point asked_at{};
  bool log_is_asked = false;  ///< this worker is about to write a question, or to read what became of it

  /// Its silence means something: nobody is declared dead for whom nothing is at stake.
  [[nodiscard]] bool watched() const noexcept {
    return links > 0 || suspect || awaited || (guarded && (reached || control));
  }
  /// A control connection is wanted.
  [[nodiscard]] bool minded() const noexcept { return watched() || guarded; }
  /// It may be watching this worker: it must hear of it. An idle group sends nothing.
  [[nodiscard]] bool connected() const noexcept { return control || links > 0; }
  /// Watching begins, or begins anew: its lease starts now.
  void renew(clock::time_point now) noexcept {
    if (now > heard) heard = now;
  }
  void begin_guarding(clock::time_point now) noexcept {
    guarded = true;
    unreached_since = now;
    answers = 0;
    question = 0;
  }
  /// It had no chance to answer up to now.
  void allow_for_delay(clock::time_point now) noexcept {
    renew(now);
    unreached_since = asked_at = now;
  }
  /// It has answered in the log.
  void take_answer(clock::time_point now) noexcept {
    question = 0;
    unreached_since = now;
    ++answers;
  }
};

/// What to do about a peer at a tick.
struct liveness_actions {
  bool declare_lost = false;
  bool open_control = false;
  bool send_heartbeat = false;  ///< over the control connection, or, without one, where calls go
  bool ask_log = false;         ///< whether it lives
  bool read_log = false;        ///< whether it has answered: its time is over
  friend bool operator==(const liveness_actions&, const liveness_actions&) = default;
};

/// `opens_first`: of the two workers it is this one that opens the control connection at once; the other one does if it still
/// finds none after a third of a lease.
liveness_actions assess(liveness& peer, clock::time_point now, const lease_rules& rules, bool opens_first) noexcept;

/// Whether a tick that was due at `due` comes so late that this process itself has been stopped, or starved: what it has
/// not heard meanwhile says nothing about others.
[[nodiscard]] bool overslept(clock::time_point due, clock::time_point now, const lease_rules& rules) noexcept;

/// What a failed attempt to connect tells about the worker that was meant.
enum class connect_verdict : std::uint8_t {
  opened,   ///< it lives
  gone,     ///< it does not exist any more
  fenced,   ///< it lives, and has declared this worker dead
  leaving,  ///< it is shutting down
  hung_up,  ///< somebody closed the connection before saying who it was: being killed, or overwhelmed
  unknown,  ///< no answer: only its lease will tell
};

}  // namespace ferry::inline v0::detail

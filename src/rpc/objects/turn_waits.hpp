#pragma once

// Detection of calls that wait for each other.

#include <exception>
#include <mutex>
#include <vector>

#include "object_turns.hpp"

namespace ferry::inline v0::detail {

/// Advice in the error text.
inline constexpr const char* deadlock_advice =
    "make the object reentrant (object_traits), use notify, or do not wait for the result inside the handler";

/// The blocked calls of one worker for which handlers certainly wait: each handler blocks its thread in a call
/// (rpc_sync, to_here, ...) that is this one, or that leads to it in the same way. If one of these calls waits,
/// directly or through others, for the turn of such a handler, that turn never ends: the call that closes the cycle is
/// refused.
///
/// No call is refused that could make progress. Reading several objects one after the other is consistent, because no
/// call in a cycle can be the first to make progress; only one that reaches its deadline may leave during the search.
/// Cycles that contain a wait for a future, or that span objects of several owners, are not detected. Thread-safe.
class turn_waits {
 public:
  /// The call has taken its place in its object's turns. It is listed here until remove().
  void add(object_visit& visit) noexcept;
  /// The same for a call that makes an object and has taken a place at another: calls may wait for the object that it
  /// makes.
  void add_maker(object_visit& visit) noexcept;
  /// The call has been answered. No effect if it is not listed.
  void remove(object_visit& visit) noexcept;

 private:
  [[nodiscard]] bool refuse_if_in_cycle(object_visit& visit) const;
  [[nodiscard]] object_turns::obstacle obstacle_of(const object_visit& visit, std::string* in_words) const;

  std::mutex mutex_;  // guards what follows and keeps listed calls alive; locked before the mutex of an object's turns
  object_visit* first_ = nullptr;
};

}  // namespace ferry::inline v0::detail

#pragma once

// Calls that wait for each other.

#include <exception>
#include <mutex>
#include <vector>

#include "object_turns.hpp"

namespace ferry::inline v0::detail {

/// What to do about it.
inline constexpr const char* way_out_of_deadlock =
    "make the object reentrant (object_traits), use notify, or do not wait for the result inside the handler";

/// The calls at one worker that are held back and for which handlers certainly wait: each handler blocks its thread in a call
/// (rpc_sync, to_here, ...) that is this one, or that leads to it in the same way. A turn of one of these handlers that is what
/// one of these calls waits for, perhaps by way of further ones, will never come: the call that closes such a circle is refused.
///
/// Nothing is refused that could go on. What is read of several objects one after the other holds together, since of those who
/// wait in a circle none can be the first to go on; only one that gives up, as its time is over, may do so while it is found.
/// Not found are circles in which somebody waits for a future, or that lead over objects of several owners. Thread-safe.
class turn_waits {
 public:
  /// It has taken its place. It stays here until remove().
  void add(incoming_call& call) noexcept;
  /// The same of one that makes an object and has taken a place at another: calls may wait for what it is to make.
  void add_maker(incoming_call& call) noexcept;
  /// It has been answered, if it was here.
  void remove(incoming_call& call) noexcept;

 private:
  [[nodiscard]] bool refuse_if_in_circle(incoming_call& call) const;
  [[nodiscard]] object_turns::obstacle obstacle_of(const incoming_call& call, std::string* in_words) const;

  std::mutex mutex_;  // guards what follows, and keeps those who are here; taken before that of an object's turns
  incoming_call* first_ = nullptr;
};

}  // namespace ferry::inline v0::detail

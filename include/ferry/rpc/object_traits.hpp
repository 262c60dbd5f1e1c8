#pragma once

// How the calls on one object that references lead to are run.

#include <cstdint>

namespace ferry::inline v0 {

/// Which calls on one object may run at a time. Calls that wait for their turn hold no thread.
enum class execution : std::uint8_t {
  concurrent,  ///< as many as come: the object guards itself
  ordered,  ///< those of one caller one after the other, in the order in which it made them; callers do not wait for each other
  exclusive,  ///< one at a time, in the order in which they arrive, but for those whose references are yet to be confirmed
};

/// Customisation point: specialise it for the type of an object that remote() makes or rref<T>(value) holds.
///
///     template <> struct ferry::object_traits<counter> {
///       static constexpr auto execution = ferry::execution::exclusive;
///       static constexpr bool reentrant = true;   // optional; false if it is not there
///     };
///
/// A call has its turn from when its handler begins until it has answered: one that waits, or awaits, for others lets nobody
/// else in. If `reentrant`, it gives its turn away for as long as it waits, so that others may see, and change, the object
/// between two steps of it. A call that would wait for a handler which itself waits for that call (a handler calls its own
/// object, directly or through others, or the result that remote() is to have there) fails with errc::would_deadlock, unless
/// the object is reentrant. One-way calls and remote() wait for nobody, and are never refused. docs/references.md says which
/// circles are found.
template <class T>
struct object_traits;

namespace detail {

struct execution_policy {
  ferry::execution how = execution::concurrent;
  bool reentrant = false;
};

template <class T>
consteval execution_policy policy_of() {
  execution_policy policy;
  if constexpr (requires { object_traits<T>::execution; }) policy.how = object_traits<T>::execution;
  if constexpr (requires { object_traits<T>::reentrant; }) policy.reentrant = object_traits<T>::reentrant;
  return policy;
}

}  // namespace detail
}  // namespace ferry::inline v0

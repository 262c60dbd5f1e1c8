#pragma once

// Scheduling of calls on an object that remote references refer to.

#include <cstdint>

namespace ferry::inline v0 {

/// Which calls on one object may run concurrently. Calls that wait for their turn do not occupy a thread.
enum class execution : std::uint8_t {
  concurrent,  ///< no restriction: the object synchronises itself
  ordered,     ///< one at a time per caller, in the caller's order; different callers do not wait for each other
  exclusive,   ///< one at a time, in order of arrival, except that a call with unconfirmed references can be overtaken
};

/// Customisation point: specialise for the type of an object that remote() makes or rref<T>(value) holds.
///
///     template <> struct ferry::object_traits<counter> {
///       static constexpr auto execution = ferry::execution::exclusive;
///       static constexpr bool reentrant = true;   // optional; default: false
///     };
///
/// A call holds its turn from the start of its handler until it has answered, including while it waits for or awaits
/// other calls. If `reentrant`, it releases its turn while it waits, so other calls may read and change the object in
/// the meantime. A call that would wait for a handler that itself waits for that call (a handler calls its own object,
/// directly or through other workers, or waits for the object that remote() makes from its own result) fails with
/// errc::would_deadlock, unless the object is reentrant. One-way calls and remote() do not wait and are never rejected.
/// docs/references.md lists the cycles that are detected.
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
  if constexpr (requires { sizeof(object_traits<T>); }) {
    static_assert(
        requires { object_traits<T>::execution; } || requires { object_traits<T>::reentrant; },
        "ferry: this specialisation of object_traits has neither 'execution' nor 'reentrant': is the name of "
        "its member misspelt?");
  }
  if constexpr (requires { object_traits<T>::execution; }) policy.how = object_traits<T>::execution;
  if constexpr (requires { object_traits<T>::reentrant; }) policy.reentrant = object_traits<T>::reentrant;
  return policy;
}

}  // namespace detail
}  // namespace ferry::inline v0

#pragma once

// Traits of asynchronous result types: future<T> and task<T>, and the T in them.

#include <type_traits>

namespace ferry::inline v0 {

template <class T>
class future;
template <class T>
class promise;
template <class T>
class task;

namespace detail {
template <class R>
struct unwrap_async {
  using type = R;
};
template <class T>
struct unwrap_async<future<T>> {
  using type = T;
};
template <class T>
struct unwrap_async<task<T>> {
  using type = T;
};
template <class R>
inline constexpr bool is_future = false;
template <class T>
inline constexpr bool is_future<future<T>> = true;
template <class R>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<task<T>> = true;
}  // namespace detail

/// T for future<T> and task<T> (references and const removed), else R without reference and const. One level only.
template <class R>
using unwrap_async_t = typename detail::unwrap_async<std::remove_cvref_t<R>>::type;

template <class R>
inline constexpr bool is_future_v = detail::is_future<std::remove_cvref_t<R>>;
template <class R>
inline constexpr bool is_task_v = detail::is_task<std::remove_cvref_t<R>>;

}  // namespace ferry::inline v0

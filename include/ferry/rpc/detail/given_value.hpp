#pragma once

// Arguments and results that a message takes over: its tensors then have no other owner, and a transport within the process
// need not copy them. Internal.

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include <ferry/rpc/detail/value_order.hpp>
#include <ferry/tensor/traits.hpp>

namespace ferry::inline v0::detail {

/// Whether a value of type A is given away rather than shown: an rvalue that may hold tensors. A tensor of another library
/// keeps its memory to itself.
template <class A, class T = std::remove_cvref_t<A>>
inline constexpr bool is_given = !std::is_lvalue_reference_v<A> && !std::is_const_v<std::remove_reference_t<A>> &&
                                 std::is_class_v<T> && !free_of_tensors<T> && !foreign_tensor<T> &&
                                 !std::is_trivially_destructible_v<T> && std::is_nothrow_move_constructible_v<T>;

/// How an argument deduced as A&& is passed on: all that are not given alike, so that a call is compiled once for them.
template <class A>
using passed = std::conditional_t<is_given<A>, std::remove_reference_t<A>&&, const std::remove_reference_t<A>&>;

/// Drops those of the values, deduced as A&&, that are given. One may be a part of another.
template <class A, class... Rest>
void drop_given_values([[maybe_unused]] std::remove_reference_t<A>& value,
                       std::remove_reference_t<Rest>&... rest) noexcept {
  std::conditional_t<is_given<A>, std::optional<std::remove_reference_t<A>>, std::monostate> dropped;
  if constexpr (is_given<A>) dropped.emplace(std::move(value));
  if constexpr (sizeof...(Rest) != 0) drop_given_values<Rest...>(rest...);
}

}  // namespace ferry::inline v0::detail

#pragma once

// The tensors in what a module returns.

#include <concepts>
#include <exception>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <variant>
#include <vector>

#include <ferry/base/type_name.hpp>
#include <ferry/rpc/rref.hpp>
#include <ferry/tensor/tensor.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0::detail {

template <class T>
inline constexpr bool is_variant = false;
template <class... Ts>
inline constexpr bool is_variant<std::variant<Ts...>> = true;
template <class T>
inline constexpr bool is_optional = false;
template <class T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <class T>
inline constexpr bool is_object_pointer = std::is_pointer_v<T> && std::is_object_v<std::remove_pointer_t<T>>;

/// Numbers, texts, durations: a tensor is a handle, whose copies are not trivial.
template <class T>
concept holds_no_tensor =
    (std::is_trivially_copyable_v<T> && !is_object_pointer<T>) || std::is_convertible_v<const T&, std::string_view> ||
    std::is_convertible_v<const T&, std::string>;

template <class T>
inline constexpr bool is_range_of_others = false;
template <std::ranges::input_range T>
inline constexpr bool is_range_of_others<T> = !std::is_same_v<std::ranges::range_value_t<T>, T>;

[[noreturn]] void throw_unseen_tensors(std::string_view type, std::string_view why);
/// Those that the serialiser of T writes. Throws errc::invalid_argument if it throws: references cannot be written here.
template <class T>
void collect_written(const T& from, std::vector<tensor>& into);

/// Appends the tensors of type Tensor in `from`: itself, those of ranges, tuples, optionals, variants, pointers, and references
/// whose owner is this worker; with ferry's tensors, also those that the serialiser of a type writes. Throws
/// errc::invalid_argument for a type into which it cannot look.
template <class T, class Tensor>
void collect_tensors(const T& from, std::vector<Tensor>& into) {
  if constexpr (std::same_as<T, Tensor>) {
    if (from.defined()) into.push_back(from);
  } else if constexpr (holds_no_tensor<T>) {
    return;
  } else if constexpr (is_rref<T>) {
    if (from && !from.is_owner()) throw_unseen_tensors(type_name<T>(), "its object is at " + from.owner_name());
    if (from) collect_tensors(from.local_value(), into);
  } else if constexpr (is_optional<T> || pointer_like<T> || is_object_pointer<T>) {
    if (from) collect_tensors(*from, into);
  } else if constexpr (is_variant<T>) {
    std::visit([&](const auto& each) { collect_tensors(each, into); }, from);
  } else if constexpr (is_range_of_others<T>) {
    for (const auto& each : from) collect_tensors(each, into);
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    std::apply([&](const auto&... each) { (collect_tensors(each, into), ...); }, from);
  } else if constexpr (std::same_as<Tensor, tensor> && wire_serialisable<T>) {
    collect_written(from, into);
  } else {
    throw_unseen_tensors(type_name<T>(), "it has no serialiser");
  }
}

template <class T>
void collect_written(const T& from, std::vector<tensor>& into) {
  try {
    const serialized written = serialize(from);
    for (const tensor& each : written.tensors) {
      if (each.defined()) into.push_back(each);
    }
  } catch (const std::exception& problem) {
    throw_unseen_tensors(type_name<T>(), problem.what());
  }
}

}  // namespace ferry::inline v0::detail

#pragma once

// The cost of decoding values, and which of them count as nesting.

#include <ferry/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cereal/cereal.hpp>

namespace cereal::memory_detail {
template <class T>
struct PtrWrapper;  // of <cereal/types/memory.hpp>
template <class Archive, class T>
struct LoadAndConstructLoadWrapper;
}  // namespace cereal::memory_detail

namespace ferry::inline v0::detail {

/// One element of a container: its memory, and its least size on the wire.
struct element_cost {
  std::size_t memory = 16;  // a serialiser with its own size tag: what it counts is unknown
  std::size_t wire = 0;
};

template <class T>
inline constexpr std::size_t least_wire_size = 0;
template <class T>
  requires(std::is_arithmetic_v<T> || std::is_same_v<T, std::byte>)
inline constexpr std::size_t least_wire_size<T> = sizeof(T);
template <class T, class A>
inline constexpr std::size_t least_wire_size<std::vector<T, A>> = 8;
template <class C, class Traits, class A>
inline constexpr std::size_t least_wire_size<std::basic_string<C, Traits, A>> = 8;

// Links, colours, hashes, buckets and the heap's own bytes of one node.
inline constexpr std::size_t list_node = 32;
inline constexpr std::size_t tree_node = 48;

template <class T>
inline constexpr element_cost cost_of_elements{};
template <class T>
  requires requires(const T& container) {
    typename T::value_type;
    { container.size() } -> std::convertible_to<std::size_t>;
  }
inline constexpr element_cost cost_of_elements<T>{
    sizeof(typename T::value_type) + (requires { typename T::key_type; } ? tree_node : list_node), 0};
template <class T, class A>
inline constexpr element_cost cost_of_elements<std::vector<T, A>>{sizeof(T), least_wire_size<T>};
template <class C, class Traits, class A>
inline constexpr element_cost cost_of_elements<std::basic_string<C, Traits, A>>{sizeof(C), sizeof(C)};

// Numbers without padding and invalid values: a sequence of them is copied as a block.
template <class T>
concept block_copied =
    (std::is_arithmetic_v<T> && sizeof(T) <= 8 && !std::is_same_v<T, bool>) || std::is_same_v<T, std::byte>;

template <class T>
inline constexpr bool copied_container = false;
template <block_copied T, class A>
inline constexpr bool copied_container<std::vector<T, A>> = true;
template <block_copied C, class Traits, class A>
inline constexpr bool copied_container<std::basic_string<C, Traits, A>> = true;

// Wrappers that cereal puts around values in transit.
template <class T>
inline constexpr bool wrapper = false;
template <class T>
inline constexpr bool wrapper<cereal::NameValuePair<T>> = true;
template <class T>
inline constexpr bool wrapper<cereal::SizeTag<T>> = true;
template <class T>
inline constexpr bool wrapper<cereal::BinaryData<T>> = true;
template <class T>
inline constexpr bool wrapper<cereal::DeferredData<T>> = true;
template <class T>
inline constexpr bool wrapper<cereal::memory_detail::PtrWrapper<T>> = true;
template <class K, class V>
inline constexpr bool wrapper<cereal::MapItem<K, V>> = true;

/// Counts as one level of nesting: types that may contain other values.
template <class T>
concept nests = (std::is_class_v<T> || std::is_union_v<T>)&&!wrapper<T> && !copied_container<T>;

template <class T>
struct pointee_of;
template <class T>
struct pointee_of<cereal::memory_detail::PtrWrapper<T>> {
  using type = std::remove_cv_t<typename std::remove_cvref_t<T>::element_type>;
};
template <class T>
using pointee_t = typename pointee_of<T>::type;

// The object behind a pointer whose contents T reads.
template <class T>
inline constexpr std::size_t object_size = sizeof(T);
template <class Archive, class T>
inline constexpr std::size_t object_size<cereal::memory_detail::LoadAndConstructLoadWrapper<Archive, T>> = sizeof(T);

template <class T>
inline constexpr bool unique_pointer_wrapper = false;
template <class T, class D>
inline constexpr bool unique_pointer_wrapper<cereal::memory_detail::PtrWrapper<std::unique_ptr<T, D>&>> = true;
template <class T>
inline constexpr bool shared_pointer_wrapper = false;
template <class T>
inline constexpr bool shared_pointer_wrapper<cereal::memory_detail::PtrWrapper<std::shared_ptr<T>&>> = true;

}  // namespace ferry::inline v0::detail

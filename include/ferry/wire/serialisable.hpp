#pragma once

// Which types can be sent, and compile-time messages for those that cannot.

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include <ferry/wire/archive.hpp>
#include <ferry/wire/standard_types.hpp>
#include <ferry/wire/tensor_archive.hpp>
#include <ferry/wire/value_archive.hpp>

namespace ferry::inline v0 {
namespace detail {

enum class wire_fault {
  none,
  raw_pointer,
  function,
  view,
  long_double,
  no_default_constructor,
  no_serialiser,
  // serialisers of cereal that are not included
  map,
  unordered_map,
  set,
  unordered_set,
  list,
  forward_list,
  deque,
  memory,
  variant,
  chrono,
  complex,
  bitset,
  valarray,
  queue,
  atomic,
};

/// The missing header for a standard type, detected by the type's members: the standard headers that declare these
/// types are not included here.
template <class T>
consteval wire_fault missing_header() {
  if constexpr (requires {
                  typename T::mapped_type;
                  typename T::hasher;
                })
    return wire_fault::unordered_map;
  else if constexpr (requires {
                       typename T::mapped_type;
                       typename T::key_type;
                     })
    return wire_fault::map;
  else if constexpr (requires {
                       typename T::key_type;
                       typename T::hasher;
                     })
    return wire_fault::unordered_set;
  else if constexpr (requires {
                       typename T::key_type;
                       typename T::key_compare;
                     })
    return wire_fault::set;
  else if constexpr (requires(T& t) {
                       typename T::allocator_type;
                       t.before_begin();
                     })
    return wire_fault::forward_list;
  else if constexpr (requires(T& t) {
                       typename T::allocator_type;
                       t.splice(t.begin(), t);
                     })
    return wire_fault::list;
  else if constexpr (requires(T& t) {
                       typename T::allocator_type;
                       t.pop_front();
                     })
    return wire_fault::deque;
  else if constexpr (requires {
                       typename T::rep;
                       typename T::period;
                     })
    return wire_fault::chrono;
  else if constexpr (requires {
                       typename T::clock;
                       typename T::duration;
                     })
    return wire_fault::chrono;
  else if constexpr (requires(T& t) {
                       typename T::element_type;
                       t.reset();
                     })
    return wire_fault::memory;
  else if constexpr (requires(T& t) { t.valueless_by_exception(); })
    return wire_fault::variant;
  else if constexpr (requires(T& t) {
                       t.flip();
                       t.test(0);
                     })
    return wire_fault::bitset;
  else if constexpr (requires(T& t) {
                       t.real();
                       t.imag();
                       typename T::value_type;
                     })
    return wire_fault::complex;
  else if constexpr (requires { typename T::container_type; })
    return wire_fault::queue;
  else if constexpr (requires(T& t) { t.cshift(1); })
    return wire_fault::valarray;
  else if constexpr (requires(T& t) {
                       t.is_lock_free();
                       t.load();
                     })
    return wire_fault::atomic;
  else if constexpr (requires(T& t) {
                       typename T::result_type;
                       t.target_type();
                     })
    return wire_fault::function;
  else
    return wire_fault::no_serialiser;
}

template <class T>
inline constexpr bool is_view = false;
template <class C, class Traits>
inline constexpr bool is_view<std::basic_string_view<C, Traits>> = true;
template <class T, std::size_t N>
inline constexpr bool is_view<std::span<T, N>> = true;

template <class T>
consteval wire_fault fault_of();

template <class... Ts>
consteval wire_fault first_fault() {
  wire_fault found = wire_fault::none;
  ((found = found == wire_fault::none ? fault_of<Ts>() : found), ...);
  return found;
}

/// The first fault among the types that a standard type contains.
template <class T>
struct contained {
  static consteval wire_fault fault() {
    if constexpr (requires {
                    typename T::mapped_type;
                    typename T::allocator_type;
                  }) {
      return first_fault<typename T::key_type, typename T::mapped_type>();
    } else if constexpr (requires {
                           typename T::value_type;
                           typename T::allocator_type;
                         }) {
      return fault_of<typename T::value_type>();
    } else {
      return wire_fault::none;
    }
  }
};
template <class... Ts>
struct contained<std::tuple<Ts...>> {
  static consteval wire_fault fault() { return first_fault<Ts...>(); }
};
template <class A, class B>
struct contained<std::pair<A, B>> {
  static consteval wire_fault fault() { return first_fault<A, B>(); }
};
template <class T>
struct contained<std::optional<T>> {
  static consteval wire_fault fault() { return fault_of<T>(); }
};
template <class T, std::size_t N>
struct contained<std::array<T, N>> {
  static consteval wire_fault fault() { return fault_of<T>(); }
};
template <class T, std::size_t N>
struct contained<T[N]> {
  static consteval wire_fault fault() { return fault_of<T>(); }
};

// Without GNU extensions they are no integers to the standard library.
#ifdef __SIZEOF_INT128__
__extension__ typedef __int128 signed_128;             // NOLINT(modernize-use-using): of an extension
__extension__ typedef unsigned __int128 unsigned_128;  // NOLINT(modernize-use-using)
template <class T>
inline constexpr bool is_128_bits = std::is_same_v<T, signed_128> || std::is_same_v<T, unsigned_128>;
#else
template <class T>
inline constexpr bool is_128_bits = false;
#endif

template <class Qualified>
consteval wire_fault fault_of() {
  using T = std::remove_cvref_t<Qualified>;
  if constexpr (std::is_pointer_v<T> || std::is_member_pointer_v<T> || std::is_null_pointer_v<T>) {
    return wire_fault::raw_pointer;
  } else if constexpr (std::is_function_v<T>) {
    return wire_fault::function;
  } else if constexpr (is_view<T>) {
    return wire_fault::view;
  } else if constexpr (std::is_arithmetic_v<T>) {
    return wire_number<T> ? wire_fault::none : wire_fault::long_double;
  } else if constexpr (is_128_bits<T>) {
    return wire_fault::long_double;
  } else if constexpr (std::is_enum_v<T> || std::is_same_v<T, tensor>) {
    return wire_fault::none;
  } else if constexpr (foreign_tensor<T>) {
    return std::is_default_constructible_v<T> ? wire_fault::none : wire_fault::no_default_constructor;
  } else if constexpr (contained<T>::fault() != wire_fault::none) {
    return contained<T>::fault();
  } else if constexpr (!(cereal::traits::is_output_serializable<T, wire_output_archive>::value &&
                         cereal::traits::is_input_serializable<T, wire_input_archive>::value) &&
                       !std::is_empty_v<T>) {
    return missing_header<T>();
  } else if constexpr (!std::is_default_constructible_v<T>) {
    return wire_fault::no_default_constructor;
  } else {
    return wire_fault::none;
  }
}

}  // namespace detail

/// Whether values of type T can be arguments and results. Looks into standard containers; errors in a user's own
/// serialiser appear when it is instantiated. Evaluate it where the serialiser of T has been declared.
template <class T>
concept wire_serialisable = detail::fault_of<T>() == detail::wire_fault::none;

namespace detail {

/// Fails to compile with the reason why T cannot be sent; compiles to nothing if it can.
template <class T>
constexpr void require_wire_serialisable() {
  if constexpr (std::is_class_v<T> && !foreign_tensor<T> && requires { sizeof(tensor_traits<T>); }) {
    static_assert(
        foreign_tensor<T>,
        "ferry: this type has a specialisation of tensor_traits, which is not complete: it needs `static ferry::tensor "
        "to_tensor(const T&)` and `static T from_tensor(ferry::tensor)`. (A view, which has to_tensor alone, can be an "
        "argument, and the parameter is the type that owns its elements)");
  }
  constexpr wire_fault fault = fault_of<T>();
  static_assert(fault != wire_fault::raw_pointer,
                "ferry: a raw pointer cannot travel: it means nothing in another process. Send the value, a "
                "std::unique_ptr or std::shared_ptr to it (include <cereal/types/memory.hpp>), or a ferry::tensor");
  static_assert(fault != wire_fault::function,
                "ferry: a function or std::function cannot travel. Call a method of the peer by its name instead");
  static_assert(fault != wire_fault::view,
                "ferry: a std::string_view or std::span inside another type cannot travel: it does not own what it "
                "refers to. Use std::string or std::vector (a parameter itself may be a view)");
  static_assert(fault != wire_fault::long_double,
                "ferry: long double and 128-bit integers differ between machines and cannot travel. Use double");
  static_assert(
      fault != wire_fault::no_default_constructor,
      "ferry: this type has no default constructor, which the receiver needs to decode into. Add one, or send a "
      "std::unique_ptr to it with cereal's load_and_construct");
  static_assert(fault != wire_fault::map, "ferry: for std::map include <cereal/types/map.hpp>");
  static_assert(fault != wire_fault::unordered_map,
                "ferry: for std::unordered_map include <cereal/types/unordered_map.hpp>");
  static_assert(fault != wire_fault::set, "ferry: for std::set include <cereal/types/set.hpp>");
  static_assert(fault != wire_fault::unordered_set,
                "ferry: for std::unordered_set include <cereal/types/unordered_set.hpp>");
  static_assert(fault != wire_fault::list, "ferry: for std::list include <cereal/types/list.hpp>");
  static_assert(fault != wire_fault::forward_list,
                "ferry: for std::forward_list include <cereal/types/forward_list.hpp>");
  static_assert(fault != wire_fault::deque, "ferry: for std::deque include <cereal/types/deque.hpp>");
  static_assert(fault != wire_fault::memory,
                "ferry: for std::unique_ptr, std::shared_ptr and std::weak_ptr include <cereal/types/memory.hpp> "
                "(pointers to polymorphic types: <cereal/types/polymorphic.hpp> and CEREAL_REGISTER_TYPE)");
  static_assert(fault != wire_fault::variant, "ferry: for std::variant include <cereal/types/variant.hpp>");
  static_assert(fault != wire_fault::chrono, "ferry: for std::chrono types include <cereal/types/chrono.hpp>");
  static_assert(fault != wire_fault::complex, "ferry: for std::complex include <cereal/types/complex.hpp>");
  static_assert(fault != wire_fault::bitset, "ferry: for std::bitset include <cereal/types/bitset.hpp>");
  static_assert(fault != wire_fault::valarray, "ferry: for std::valarray include <cereal/types/valarray.hpp>");
  static_assert(fault != wire_fault::queue,
                "ferry: for std::queue and std::stack include <cereal/types/queue.hpp> or <cereal/types/stack.hpp>");
  static_assert(fault != wire_fault::atomic, "ferry: for std::atomic include <cereal/types/atomic.hpp>");
  static_assert(
      fault != wire_fault::no_serialiser,
      "ferry: this type has no serialiser. Give it one of cereal's: template <class Archive> void "
      "serialize(Archive& ar) { ar(first_member, second_member); } in the class, or a free function "
      "serialize(Archive& ar, type& value) in its namespace, or save and load; they must be declared before "
      "the call, and public (or the class has: friend class cereal::access). Or it has several, of which a base class "
      "may have one: cereal::specialization says which one counts");
}

}  // namespace detail
}  // namespace ferry::inline v0

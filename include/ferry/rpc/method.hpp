#pragma once

// Methods: functions that can be called remotely, identified by name and signature. Instantiating a call or serve()
// registers the method.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ferry/base/method_name.hpp>
#include <ferry/base/type_name.hpp>
#include <ferry/rpc/detail/async_traits.hpp>
#include <ferry/rpc/detail/method_entry.hpp>
#include <ferry/wire/serialize.hpp>

namespace ferry::inline v0 {

/// Customisation point: specialise for the type of a function given as a template argument.
///   template <> struct ferry::method_traits<&tiny> { static constexpr bool inline_handler = true; };
/// inline_handler: run the function on the thread that receives the request, without a num_worker_threads slot. Only
/// for very short functions that never block.
template <auto F>
struct method_traits;

namespace detail {

template <class T>
inline constexpr bool dependent_false = false;

template <class P>
inline constexpr bool is_mutable_span = false;
template <class T, std::size_t N>
inline constexpr bool is_mutable_span<std::span<T, N>> = !std::is_const_v<T>;
template <class P>
inline constexpr bool is_bool_span = false;
template <std::size_t N>
inline constexpr bool is_bool_span<std::span<const bool, N>> = true;

template <class P>
consteval bool check_parameter() {
  static_assert(
      !is_mutable_span<std::remove_cvref_t<P>>,
      "ferry: a method's parameter is a std::span of elements that are not const; nothing can be written back "
      "to the caller. Take a std::span<const T>, or a std::vector<T>, and return what changed");
  static_assert(
      !is_bool_span<std::remove_cvref_t<P>>,
      "ferry: a method's parameter is a std::span<const bool>; it would view a std::vector<bool>, which has no "
      "bools in memory. Take a std::vector<bool>, or a std::span<const std::uint8_t>");
  static_assert(
      !std::is_lvalue_reference_v<P> || std::is_const_v<std::remove_reference_t<P>>,
      "ferry: a method's parameter is a non-const reference; nothing can be written back to the caller. Take it "
      "by value or const&, and return what changed");
  static_assert(!std::is_pointer_v<std::remove_cvref_t<P>>,
                "ferry: a method's parameter is a pointer, which means nothing in another process. Take a value, a "
                "std::string_view, a std::span<const T> or a std::unique_ptr");
  static_assert(!is_future_v<P> && !is_task_v<P>,
                "ferry: a method's parameter is a future or task, which cannot travel. Wait for it and pass its value");
  return true;
}
template <class R>
consteval bool check_result() {
  static_assert(!std::is_pointer_v<std::remove_cvref_t<R>>,
                "ferry: a method returns a pointer, which means nothing in another process. Return a value");
  static_assert(
      !is_future_v<unwrap_async_t<R>> && !is_task_v<unwrap_async_t<R>>,
      "ferry: a method returns a future of a future, which cannot travel. Return a future or task of a value");
  return true;
}

// The parts of a function type: result, and parameters as a tuple; for a member function the object comes first.
template <class Function>
struct function_parts {
  static_assert(
      dependent_false<Function>,
      "ferry: a method is a function, a member function (not volatile, not const &&), make<T>, named<> or "
      "stub<>, given as a template argument: rpc_sync<f>(...). A data member is none. Lambdas have no name that "
      "another program could know: write a function");
};
template <class R, class... P>
struct function_parts<R (*)(P...)> {
  using result = R;
  using parameters = std::tuple<P...>;
  using signature = wire_type<unwrap_async_t<R>>(wire_type<P>...);
  static_assert((check_parameter<P>() && ... && check_result<R>()));
};
template <class R, class C, class... P>
struct member_parts {
  using result = R;
  using parameters = std::tuple<C, P...>;
  using signature = wire_type<unwrap_async_t<R>>(wire_type<C>, wire_type<P>...);
  static constexpr bool on_rvalue = false;
  static_assert((check_parameter<P>() && ... && check_result<R>()));
};
template <class R, class C, class... P>
struct function_parts<R (C::*)(P...)> : member_parts<R, C, P...> {};
template <class R, class C, class... P>
struct function_parts<R (C::*)(P...) const> : member_parts<R, const C&, P...> {};
template <class R, class C, class... P>
struct function_parts<R (C::*)(P...)&> : member_parts<R, C, P...> {};
template <class R, class C, class... P>
struct function_parts<R (C::*)(P...) const&> : member_parts<R, const C&, P...> {};
template <class R, class C, class... P>
struct function_parts<R (C::*)(P...) &&> : member_parts<R, C, P...> {
  static constexpr bool on_rvalue = true;
};

// The parts of a function that is called on an object of the callee: a member function, or a function whose first
// parameter is the object. The object is not among the parameters.
template <class R, class Object, class... P>
struct object_call_parts {
  using result = R;
  using object = std::remove_cvref_t<Object>;
  using parameters = std::tuple<P...>;
  using signature = wire_type<unwrap_async_t<R>>(object, wire_type<P>...);
  static constexpr bool on_rvalue = false;
  static_assert((check_parameter<P>() && ... && check_result<R>()));
};
template <class Function>
struct object_parts {
  static_assert(dependent_false<Function>,
                "ferry: a call on a reference needs a member function, or a function whose first parameter is the "
                "object, as a template argument: ref.rpc_sync<&type::f>(...)");
};
template <class R, class Object, class... P>
struct object_parts<R (*)(Object, P...)> : object_call_parts<R, Object, P...> {};
template <class R, class C, class... P>
struct object_parts<R (C::*)(P...)> : object_call_parts<R, C, P...> {};
template <class R, class C, class... P>
struct object_parts<R (C::*)(P...) const> : object_call_parts<R, C, P...> {};
template <class R, class C, class... P>
struct object_parts<R (C::*)(P...)&> : object_call_parts<R, C, P...> {};
template <class R, class C, class... P>
struct object_parts<R (C::*)(P...) const&> : object_call_parts<R, C, P...> {};
template <class R, class C, class... P>
struct object_parts<R (C::*)(P...) &&> : object_call_parts<R, C, P...> {
  static_assert(dependent_false<C>,
                "ferry: an rvalue-qualified member function would consume the object that the reference refers to");
};

template <auto F, method_flavour Flavour = method_flavour::call>
struct parts_for {
  using type = function_parts<typename without_noexcept<decltype(F)>::type>;
};
template <auto F, method_flavour Flavour>
  requires(on_object(Flavour))
struct parts_for<F, Flavour> {
  using type = object_parts<typename without_noexcept<decltype(F)>::type>;
};
template <auto F, method_flavour Flavour = method_flavour::call>
using parts_of = typename parts_for<F, Flavour>::type;
template <auto F, method_flavour Flavour = method_flavour::call>
using result_of = wire_type<unwrap_async_t<typename parts_of<F, Flavour>::result>>;

// The underlying function and the public name of a method. Specialised by named.hpp.
template <class Type>
struct method_facts {};
template <auto F>
using facts_of = method_facts<typename without_noexcept<decltype(F)>::type>;

template <auto F>
inline constexpr bool is_stub = requires { facts_of<F>::stub; };
template <auto F>
consteval auto function_behind() {
  if constexpr (requires { facts_of<F>::function; }) {
    return facts_of<F>::function;
  } else {
    return F;
  }
}
template <auto F>
consteval void check_traits() {
  if constexpr (requires { sizeof(method_traits<F>); }) {
    static_assert(
        requires { method_traits<F>::inline_handler; } || requires { method_traits<F>::protocol; },
        "ferry: this specialisation of method_traits has no 'inline_handler': is the name of its member "
        "misspelt?");
  }
}
template <auto F>
consteval bool runs_inline() {
  check_traits<F>();
  if constexpr (requires { method_traits<F>::inline_handler; }) {
    return method_traits<F>::inline_handler;
  } else if constexpr (requires { method_traits<function_behind<F>()>::inline_handler; }) {
    return method_traits<function_behind<F>()>::inline_handler;
  } else {
    return false;
  }
}

template <auto F>
consteval bool is_protocol() {
  if constexpr (requires { method_traits<function_behind<F>()>::protocol; }) {
    return method_traits<function_behind<F>()>::protocol;
  } else {
    return false;
  }
}

// Hidden visibility: every library has its own entries, with the lifetime of the library. None becomes an
// STB_GNU_UNIQUE symbol, which would keep its library from being unloaded.

template <auto F, method_flavour Flavour>
[[gnu::visibility("hidden")]] void serve_method(incoming_call& call);

template <auto F, method_flavour Flavour = method_flavour::call>
[[gnu::visibility("hidden")]] const method_entry& method_of() {
  static const static_method_entry entry([] {
    method_source source;
    source.flavour = Flavour;
    source.signature = &signature_text<typename parts_of<F, Flavour>::signature>;
    if constexpr (requires { facts_of<F>::public_name; }) source.public_name = facts_of<F>::public_name;
    if constexpr (!is_stub<F>) {
      constexpr auto function = function_behind<F>();
      static_assert(
          !is_converted_lambda<function>(),
          "ferry: a lambda converted to a function pointer is not a method. Lambdas have no name that another "
          "program could know: write a function");
      source.tag = &typeid(tag_of<function>);
      source.type = &typeid(typename without_noexcept<decltype(function)>::type);
      source.serve = &serve_method<function, Flavour>;
      source.inline_handler = runs_inline<F>();
      source.protocol = is_protocol<F>();
    }
    return source;
  }());
  return entry.get();
}

/// Odr-using at_startup registers the method when the program starts or the library is loaded.
template <auto F, method_flavour Flavour = method_flavour::call>
struct [[gnu::visibility("hidden")]] registered {
  static inline const bool at_startup = (method_of<F, Flavour>(), note_process_exit(), true);
};

/// The method's entry; registers it.
template <auto F, method_flavour Flavour = method_flavour::call>
[[gnu::visibility("hidden")]] const method_entry& usable_method() {
  (void)registered<F, Flavour>::at_startup;
  return method_of<F, Flavour>();
}

}  // namespace detail

/// The constructor of T as a method that returns the object. make<T> deduces the wire types from the arguments (string
/// literals become std::string); make<T, Args...> specifies them.
template <class T, class... Args>
struct make_t {};
template <class T, class... Args>
inline constexpr make_t<T, Args...> make{};

namespace detail {

template <class T, class... Args>
T construct(Args... args) {
  static_assert(!std::is_abstract_v<T>,
                "ferry: make<T> makes objects, and T is abstract: name a class derived from it");
  static_assert(
      std::is_abstract_v<T> || std::is_constructible_v<T, Args...> || requires { T{std::declval<Args>()...}; },
      "ferry: make<T> was given arguments from which a T cannot be constructed");
  if constexpr (std::is_constructible_v<T, Args...>) {
    return T(std::move(args)...);
  } else {
    return T{std::move(args)...};
  }
}

template <class A>
using deduced_wire_type =
    std::conditional_t<std::is_convertible_v<A, std::string_view> && !std::is_class_v<std::remove_cvref_t<A>>,
                       std::string, wire_type<A>>;

/// Resolves the function that a call of F with arguments of types A... invokes.
template <auto F, class... A>
struct resolve {
  static constexpr auto function = F;
};
template <class T, class... Fixed, make_t<T, Fixed...> M, class... A>
  requires(sizeof...(Fixed) != 0 || sizeof...(A) == 0)
struct resolve<M, A...> {
  static constexpr auto function = &construct<T, wire_type<Fixed>...>;
};
template <class T, make_t<T> M, class First, class... A>
struct resolve<M, First, A...> {
  static constexpr auto function = &construct<T, deduced_wire_type<First>, deduced_wire_type<A>...>;
};

}  // namespace detail
}  // namespace ferry::inline v0

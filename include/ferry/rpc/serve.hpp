#pragma once

// Workers that serve only a list of methods.

#include <cstdint>
#include <vector>

#include <ferry/backend/served_methods.hpp>
#include <ferry/rpc/rref.hpp>

namespace ferry::inline v0 {

namespace detail {

/// The type of a function's first parameter; void if it has none.
template <class Function>
struct first_parameter {
  using type = void;
};
template <class R, class First, class... P>
struct first_parameter<R (*)(First, P...)> {
  using type = First;
};
template <literal_name Name, class R, class First, class... P>
struct first_parameter<stub_t<Name, R(First, P...)>> {
  using type = First;
};

template <auto F, method_flavour Flavour>
void add_use(std::vector<std::uint64_t>& ids) {
  ids.push_back(usable_method<F, Flavour>().id);
}
/// The methods for F as a function: call it, keep its result at the callee, and fetch that result.
template <auto F>
void add_calls(std::vector<std::uint64_t>& ids) {
  using result = result_of<F>;
  add_use<F, method_flavour::creation>(ids);
  if constexpr (std::is_void_v<result>) {
    add_use<F, method_flavour::call>(ids);
  } else if constexpr (wire_serialisable<result>) {
    add_use<F, method_flavour::call>(ids);
    add_use<&value_of<result>, method_flavour::object_call>(ids);
  }
}
/// The methods for F called on an object.
template <auto F>
void add_object_calls(std::vector<std::uint64_t>& ids) {
  using result = result_of<F, method_flavour::object_call>;
  add_use<F, method_flavour::object_creation>(ids);
  if constexpr (std::is_void_v<result>) {
    add_use<F, method_flavour::object_call>(ids);
  } else if constexpr (wire_serialisable<result>) {
    add_use<F, method_flavour::object_call>(ids);
    add_use<&value_of<result>, method_flavour::object_call>(ids);
  }
}

/// Adds the ids of all methods that callers may use F with: call it, keep its result at the callee and fetch it from
/// there; for member functions, and functions whose first parameter is an object, also the same on an object. Methods
/// whose types have no serialiser are left out.
template <auto F>
void add_uses(std::vector<std::uint64_t>& ids) {
  constexpr auto function = function_behind<F>();
  using first = typename first_parameter<typename without_noexcept<decltype(function)>::type>::type;
  using object = std::remove_cvref_t<first>;
  if constexpr (std::is_member_function_pointer_v<decltype(function)>) {
    add_object_calls<F>(ids);
    if constexpr (wire_serialisable<typename parts_of<F, method_flavour::object_call>::object>) add_calls<F>(ids);
  } else if constexpr (std::is_class_v<object> || std::is_lvalue_reference_v<first>) {
    add_object_calls<F>(ids);
    constexpr bool changes = std::is_lvalue_reference_v<first> && !std::is_const_v<std::remove_reference_t<first>>;
    if constexpr (!changes && (is_view<object> || wire_serialisable<object>)) add_calls<F>(ids);
  } else {
    add_calls<F>(ids);
  }
}

template <auto... F>
std::vector<std::uint64_t> uses_of() {
  std::vector<std::uint64_t> ids;
  (add_uses<resolve<F>::function>(ids), ...);
  return ids;
}

}  // namespace detail

template <auto... F>
struct serve_list_t {
  operator served_methods() const {  // NOLINT(google-explicit-constructor): for worker_config::serve
    return served_methods(detail::uses_of<F...>());
  }
};
/// The methods F..., with all ways to call them (rpc_sync, remote, calls on references), for worker_config::serve:
/// `init_rpc({.name = "server", .serve = ferry::serve_list<dot, scale>})`. An empty list: the worker serves no methods.
/// Listing a function also links it into the program, even from a static archive. make<T> must list its argument types:
/// make<T, int>. A stub<> denotes a method that a plug-in provides later.
template <auto... F>
inline constexpr serve_list_t<F...> serve_list{};

/// Registers methods of this program or library without calling or listing them, from when it is loaded until it is
/// unloaded. Use at namespace scope: `const ferry::provide<dot, ferry::named<"scale", scale>> methods;`. For plug-ins.
template <auto... F>
struct provide {
  provide() { (void)detail::uses_of<F...>(); }
};

/// Restricts every worker of this process that starts later and has no list of its own to these methods and those of
/// earlier calls of serve(). A call of any other method fails with errc::unknown_method. Thread-safe.
template <auto... F>
void serve() {
  detail::add_served_methods(detail::uses_of<F...>());
}

}  // namespace ferry::inline v0

#pragma once

// Names of functions given as template arguments, the same for GCC and Clang.

#include <string>
#include <string_view>
#include <typeinfo>

namespace ferry::inline v0 {
namespace detail {

template <class T>
struct without_noexcept {
  using type = T;
};
// g++ 12 may report F as const where it denotes a constexpr variable.
template <class T>
struct without_noexcept<const T> : without_noexcept<T> {};
template <class R, class... A>
struct without_noexcept<R (*)(A...) noexcept> {
  using type = R (*)(A...);
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) noexcept> {
  using type = R (C::*)(A...);
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) const noexcept> {
  using type = R (C::*)(A...) const;
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) & noexcept> {
  using type = R (C::*)(A...) &;
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) const & noexcept> {
  using type = R (C::*)(A...) const&;
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) && noexcept> {
  using type = R (C::*)(A...) &&;
};
template <class R, class C, class... A>
struct without_noexcept<R (C::*)(A...) const && noexcept> {
  using type = R (C::*)(A...) const&&;
};

// A type whose mangled name contains the mangled name of F. The type of F comes first: where Clang adds a conversion
// before F (a noexcept function selected by a cast), that conversion is then a reference to this type and shifts no
// later back reference, so that removing it leaves GCC's form.
template <class Type, auto F>
struct method_tag {};
template <auto F>
using tag_of = method_tag<typename without_noexcept<decltype(F)>::type, F>;

// Whether F is the function that a lambda converts to: <lambda(int)>::_FUN in GCC, (anonymous class)::__invoke in
// Clang.
// Both names are reserved for the compiler.
template <auto F>
consteval bool is_converted_lambda() {
  const std::string_view spelled = __PRETTY_FUNCTION__;
  return spelled.ends_with("::_FUN]") || spelled.ends_with("::__invoke]");
}

std::string mangled_method(const std::type_info& tag);
/// The part of such a name that says nothing of types: the same for functions of one name. The whole where that part cannot be told (template
/// arguments, substitutions, operators).
std::string_view name_without_types(std::string_view mangled) noexcept;
std::string readable_method(const std::type_info& tag, const std::type_info& type);

}  // namespace detail

/// The identity of a free or member function, equal for GCC and Clang: its mangled name and, after a dot, its mangled
/// type (the name's back references point into the type, so it is not a linker symbol). Computed once; thread-safe.
template <auto F>
[[nodiscard]] const std::string& mangled_name() {
  static const std::string name = detail::mangled_method(typeid(detail::tag_of<F>));
  return name;
}

/// The function's qualified name, readable: `dot`, `model::forward`, `add<int>`. Computed once; thread-safe.
template <auto F>
[[nodiscard]] const std::string& method_name() {
  static const std::string name =
      detail::readable_method(typeid(detail::tag_of<F>), typeid(typename detail::without_noexcept<decltype(F)>::type));
  return name;
}

}  // namespace ferry::inline v0

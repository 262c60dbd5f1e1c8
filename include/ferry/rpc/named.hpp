#pragma once

// Methods with a public name, for programs that are built from different sources:
//   ferry::serve<ferry::named<"dot", dot>>();                                                      // the server
//   ferry::rpc_sync<ferry::stub<"dot", double(std::vector<double>, std::vector<double>)>>("server", a, b);  // a client

#include <cstddef>
#include <string_view>

#include <ferry/rpc/method.hpp>

namespace ferry::inline v0 {

namespace detail {

/// A string literal as a template argument.
template <std::size_t N>
struct literal_name {
  consteval literal_name(const char (&literal)[N]) {  // NOLINT(google-explicit-constructor)
    for (std::size_t i = 0; i != N; ++i) text[i] = literal[i];
  }
  [[nodiscard]] constexpr std::string_view view() const noexcept { return {text, N - 1}; }
  char text[N] = {};
};

template <literal_name Name>
consteval bool check_method_name() {
  static_assert(!Name.view().empty(), "ferry: a method's public name is empty; give it one: named<\"name\", f>");
  static_assert(
      [] {
        for (const char c : Name.view()) {
          if (c <= ' ' || c > '~') return false;
        }
        return true;
      }(),
      "ferry: a method's public name has a blank, a control character or one outside ASCII; use letters, digits and "
      "punctuation");
  return true;
}

}  // namespace detail

template <detail::literal_name Name, auto F>
struct named_t {
  static_assert(detail::check_method_name<Name>());
};
/// F under a public name; usable wherever a method is expected. Callers need the name and the signature, not the
/// function; the name does not change when the function is renamed or moved. One name denotes one function; otherwise
/// workers fail to start with errc::duplicate_method. F without named<> is a separate method. make<T, Args...> must
/// list its Args here.
template <detail::literal_name Name, auto F>
inline constexpr named_t<Name, F> named{};

template <detail::literal_name Name, class Signature>
struct stub_t {
  static_assert(detail::check_method_name<Name>());
};
/// A method of another program by its public name; usable wherever a method is called. Signature: R(Args...) as
/// declared by the callee. Types with the same wire type are interchangeable (T and const T&; std::string and
/// std::string_view; std::vector and std::span; T, future<T> and task<T> as results). A member function takes its
/// object as first parameter.
template <detail::literal_name Name, class Signature>
inline constexpr stub_t<Name, Signature> stub{};

namespace detail {

template <auto F>
inline constexpr bool is_named = false;
template <literal_name Name, auto F, named_t<Name, F> M>
inline constexpr bool is_named<M> = true;

template <literal_name Name, auto F>
struct function_parts<named_t<Name, F>> : parts_of<resolve<F>::function> {
  static_assert(
      !is_named<F> && !is_stub<F>,
      "ferry: named<\"name\", f> needs a function, a member function or make<T, Args...>, not another named<> "
      "or stub<>");
};
template <literal_name Name, auto F>
struct object_parts<named_t<Name, F>> : object_parts<typename without_noexcept<decltype(F)>::type> {};
template <literal_name Name, auto F>
struct method_facts<named_t<Name, F>> {
  static constexpr auto function = resolve<F>::function;
  static constexpr std::string_view public_name = Name.view();
};

template <class Signature>
struct stub_parts {
  static_assert(dependent_false<Signature>,
                "ferry: stub<\"name\", Signature> needs a function type, for example stub<\"dot\", "
                "double(std::vector<double>, std::vector<double>)>");
};
template <class R, class... P>
struct stub_parts<R(P...)> {
  static_assert(!std::is_reference_v<R>,
                "ferry: a stub's result is a reference, which means nothing in another process. Results travel by "
                "value");
  using result = R;
  using parameters = std::tuple<P...>;
  using signature = wire_type<unwrap_async_t<R>>(wire_type<P>...);
  static_assert((check_parameter<P>() && ... && check_result<R>()));
};
template <class R, class... P>
struct stub_parts<R(P...) noexcept> : stub_parts<R(P...)> {};

template <literal_name Name, class Signature>
struct function_parts<stub_t<Name, Signature>> : stub_parts<Signature> {};
template <literal_name Name, class R, class Object, class... P>
struct object_parts<stub_t<Name, R(Object, P...)>> : object_call_parts<R, Object, P...> {};
template <literal_name Name, class Signature>
struct method_facts<stub_t<Name, Signature>> {
  static constexpr bool stub = true;
  static constexpr std::string_view public_name = Name.view();
};

}  // namespace detail
}  // namespace ferry::inline v0

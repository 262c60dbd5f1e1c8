#pragma once

// Names of types and signatures that are the same for every compiler and standard library: builtin types by width and
// sign, standard containers by structure, user types by qualified name and CEREAL_CLASS_VERSION. Two sides compare
// fingerprints of signatures before a call's arguments are decoded.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>

namespace cereal::detail {
// Declared as cereal does it, so that this header need not include it.
namespace {
struct version_binding_tag;
}
template <class T, class BindingTag>
struct Version;  // CEREAL_CLASS_VERSION specialises it
}  // namespace cereal::detail

namespace ferry::inline v0 {

/// Customisation point: specialise it with `static constexpr std::string_view name` to give a type, on all sides, a
/// name other than its qualified C++ name (a type that was renamed or moved, or that is sent as another type).
template <class T>
struct type_name_traits;

/// 64-bit FNV-1a with a final mix, so that short texts affect all bits. The same on every machine.
constexpr std::uint64_t fingerprint(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3U;
  }
  hash ^= hash >> 32U;
  hash *= 0xd6e8feb86659fd93U;
  hash ^= hash >> 32U;
  return hash;
}

namespace detail {

/// The demangled text of a symbol or a type_info::name(); the input itself if it is not a mangled name.
std::string demangle(const char* mangled);
/// The same without the differences between standard libraries (inline namespaces of std, spaces).
std::string demangled_type(const std::type_info& type);
/// Readable type names: without ferry's inline namespace, which no program writes.
std::string readable_type(const std::type_info& type);
std::string readable_names(std::string_view text);
/// Adds the name of the class template of which `type` is an instance, and `<arguments>` without std's defaults
/// (allocators, comparators, hashes, deleters).
void append_instance(std::string& out, const std::type_info& type, std::string_view arguments);
/// Adds one template argument, and the comma before it; drops those that std fills in.
void append_argument(std::string& arguments, std::string_view argument);
void append_class(std::string& out, const std::type_info& type);
void append_number(std::string& out, std::int64_t value);

template <class T>
void append_type(std::string& out);

// The structure of a template instance, by the kinds of its parameters.
template <class T>
struct type_structure {
  static void append(std::string& out) { append_class(out, typeid(T)); }
};
template <template <class...> class C, class... Ts>
struct type_structure<C<Ts...>> {
  static void append(std::string& out) {
    std::string arguments;
    [[maybe_unused]] const auto add = [&]<class U>(std::type_identity<U>) {
      std::string text;
      append_type<U>(text);
      append_argument(arguments, text);
    };
    (add(std::type_identity<Ts>{}), ...);
    append_instance(out, typeid(C<Ts...>), arguments);
  }
};
template <template <class, std::size_t> class C, class T, std::size_t N>
struct type_structure<C<T, N>> {
  static void append(std::string& out) {
    std::string arguments;
    append_type<T>(arguments);
    arguments += ',';
    append_number(arguments, static_cast<std::int64_t>(N));
    append_instance(out, typeid(C<T, N>), arguments);
  }
};
template <template <std::size_t> class C, std::size_t N>
struct type_structure<C<N>> {
  static void append(std::string& out) {
    std::string arguments;
    append_number(arguments, static_cast<std::int64_t>(N));
    append_instance(out, typeid(C<N>), arguments);
  }
};
template <template <std::intmax_t, std::intmax_t> class C, std::intmax_t A, std::intmax_t B>
struct type_structure<C<A, B>> {
  static void append(std::string& out) {
    std::string arguments;
    append_number(arguments, A);
    arguments += ',';
    append_number(arguments, B);
    append_instance(out, typeid(C<A, B>), arguments);
  }
};
// The types that arguments are encoded as, but not decoded as.
template <class C, class Traits>
struct type_structure<std::basic_string_view<C, Traits>> : type_structure<std::basic_string<C>> {};
template <class T, std::size_t N>
struct type_structure<std::span<T, N>> {
  static void append(std::string& out) {
    out += "vector<";
    append_type<T>(out);
    out += '>';
  }
};
template <class T, std::size_t N>
struct type_structure<T[N]> {
  static void append(std::string& out) {
    append_type<T>(out);
    out += '[';
    append_number(out, static_cast<std::int64_t>(N));
    out += ']';
  }
};

template <class T>
void append_version(std::string& out) {
  // Through the function: the variable may not be initialised yet when names are made during static initialisation.
  if constexpr (requires { cereal::detail::Version<T, cereal::detail::version_binding_tag>::registerVersion(); }) {
    const auto version = cereal::detail::Version<T, cereal::detail::version_binding_tag>::registerVersion();
    if (version != 0) {
      out += '@';
      append_number(out, version);
    }
  }
}

template <class T>
void append_builtin(std::string& out) {
  if constexpr (std::is_same_v<T, bool>) {
    out += "bool";
  } else if constexpr (std::is_same_v<T, char>) {
    out += "char";
  } else if constexpr (std::is_same_v<T, wchar_t>) {
    out += sizeof(wchar_t) == 2 ? "wchar16" : "wchar32";
  } else if constexpr (std::is_same_v<T, char8_t> || std::is_same_v<T, char16_t> || std::is_same_v<T, char32_t>) {
    out += "char";
    append_number(out, 8 * sizeof(T));
  } else if constexpr (std::is_same_v<T, long double>) {
    out += "long double";
  } else {
    out += std::is_floating_point_v<T> ? 'f' : std::is_signed_v<T> ? 'i' : 'u';
    append_number(out, 8 * sizeof(T));
  }
}

template <class Qualified>
void append_type(std::string& out) {
  using T = std::remove_cvref_t<Qualified>;
  if constexpr (requires { std::string_view(type_name_traits<T>::name); }) {
    out += std::string_view(type_name_traits<T>::name);
  } else if constexpr (std::is_void_v<T>) {
    out += "void";
  } else if constexpr (std::is_arithmetic_v<T>) {
    append_builtin<T>(out);
  } else if constexpr (std::is_enum_v<T>) {
    append_class(out, typeid(T));
    out += ':';
    append_builtin<std::underlying_type_t<T>>(out);
  } else {
    type_structure<T>::append(out);
    if constexpr (std::is_class_v<T>) append_version<T>(out);
  }
}

template <class Signature>
struct signature_of;
template <class R, class... Args>
struct signature_of<R(Args...)> {
  static std::string text() {
    std::string out;
    append_type<R>(out);
    out += '(';
    std::size_t left = sizeof...(Args);
    [[maybe_unused]] const auto add = [&]<class U>(std::type_identity<U>) {
      append_type<U>(out);
      if (--left != 0) out += ", ";
    };
    (add(std::type_identity<Args>{}), ...);
    out += ')';
    return out;
  }
};
template <class R, class... Args>
struct signature_of<R(Args...) noexcept> : signature_of<R(Args...)> {};

}  // namespace detail

/// The canonical name of `T`, for example `map<string,i32>`, `app::model@2` (class version 2), `app::color:u8`.
/// References and const are dropped; string_view is named as string, span as vector.
template <class T>
[[nodiscard]] std::string type_name() {
  std::string out;
  detail::append_type<T>(out);
  return out;
}

/// The canonical text of a signature `R(Args...)`, for example `f64(vector<f64>, vector<f64>)`.
template <class Signature>
[[nodiscard]] std::string signature_text() {
  return detail::signature_of<Signature>::text();
}

}  // namespace ferry::inline v0

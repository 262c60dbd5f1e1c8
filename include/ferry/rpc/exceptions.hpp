#pragma once

// Exceptions that keep their type across a call. The standard exceptions (but std::regex_error) and ferry's own always do.

#include <concepts>
#include <exception>
#include <string>
#include <string_view>
#include <typeinfo>

namespace ferry::inline v0 {

/// Customisation point: specialise for a user-defined exception type, and pass the type to register_exceptions in
/// caller and callee.
///   static constexpr std::string_view name;              unique and stable; it is sent
///   static std::string encode(const T& thrown);          any bytes
///   static T decode(std::string_view what, std::string_view bytes);
template <class T>
struct exception_traits;

template <class T>
concept registrable_exception = requires(const T& thrown, std::string_view text) {
  { exception_traits<T>::name } -> std::convertible_to<std::string_view>;
  { exception_traits<T>::encode(thrown) } -> std::convertible_to<std::string>;
  { exception_traits<T>::decode(text, text) } -> std::convertible_to<T>;
};

namespace detail {
struct exception_codec {
  std::string_view name;
  const std::type_info* type;
  std::string (*encode)(const std::exception_ptr&);
  std::exception_ptr (*decode)(std::string_view what, std::string_view bytes);
};
void register_exception(const exception_codec& codec);
/// Waits until no thread runs the codec.
void forget_exception(const exception_codec& codec) noexcept;

/// Of a library that is unloaded, the codecs go with it.
class exception_registration {
 public:
  explicit exception_registration(const exception_codec& codec) : codec_(codec) { register_exception(codec_); }
  ~exception_registration() { forget_exception(codec_); }
  exception_registration(const exception_registration&) = delete;
  exception_registration& operator=(const exception_registration&) = delete;

 private:
  exception_codec codec_;
};

template <class T>
void register_exception_type() {
  static const exception_registration once({exception_traits<T>::name, &typeid(T),
                                            [](const std::exception_ptr& thrown) -> std::string {
                                              try {
                                                std::rethrow_exception(thrown);
                                              } catch (const T& e) {
                                                return exception_traits<T>::encode(e);
                                              }
                                            },
                                            [](std::string_view what, std::string_view bytes) {
                                              return std::make_exception_ptr(exception_traits<T>::decode(what, bytes));
                                            }});
}
}  // namespace detail

/// Registers exception types, so that they keep their type across a call. An exception of a derived type that is not
/// registered arrives as ferry::remote_error. Idempotent, thread-safe. Throws errc::invalid_argument if two types have
/// the same name. What a plug-in registers goes when it is unloaded,
/// which waits for its encode() and decode(): they neither load nor unload libraries.
template <class... Ts>
void register_exceptions() {
  static_assert(
      (registrable_exception<Ts> && ...),
      "ferry: an exception type needs a specialisation of ferry::exception_traits with name, encode(const T&) and "
      "decode(what, bytes); see ferry/rpc/exceptions.hpp");
  (detail::register_exception_type<Ts>(), ...);
}

}  // namespace ferry::inline v0
